// Loads the model with its library: java -cp onnxruntime.jar Load.java [FOLDER]
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtSession;
import java.nio.file.Path;

public class Load {
  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments.length > 0 ? arguments[0] : "../..");
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      options.registerCustomOpLibrary(folder.resolve("LIBRARY").toString());
      try (OrtSession session = OrtEnvironment.getEnvironment().createSession(folder.resolve("MODEL").toString(), options)) {
        System.out.println(session.getNumInputs() + " inputs, " + session.getNumOutputs() + " outputs");
      }
    }
  }
}
