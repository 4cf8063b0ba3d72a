// Loads the model with its library: c++ -std=c++17 load.cpp -lonnxruntime && ./a.out [FOLDER]
#include <onnxruntime_cxx_api.h>

#include <iostream>
#include <string>

int main(int count, char** arguments) {
  const std::string folder = count > 1 ? arguments[1] : "../..";
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "load");
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary((folder + "/" + "LIBRARY").c_str());
  Ort::Session session(env, (folder + "/" + "MODEL").c_str(), options);
  std::cout << session.GetInputCount() << " inputs, " << session.GetOutputCount() << " outputs\n";
}
