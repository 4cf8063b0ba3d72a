// Loads the model with its library: a console project that references Microsoft.ML.OnnxRuntime; dotnet run [FOLDER]
using System;
using System.IO;
using Microsoft.ML.OnnxRuntime;

string folder = args.Length > 0 ? args[0] : "../..";
using var options = new SessionOptions();
options.RegisterCustomOpLibrary(Path.Combine(folder, "LIBRARY"));
using var session = new InferenceSession(Path.Combine(folder, "MODEL"), options);
Console.WriteLine($"{session.InputMetadata.Count} inputs, {session.OutputMetadata.Count} outputs");
