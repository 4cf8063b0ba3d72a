/* A host in C that knows ONNX Runtime by the numbers of its functions alone, as ort_abi.h lists them. It opens a model with
   its library, runs it on as many floats as its input has, and prints the runtime's version and the sum of the output.
   Arguments: runtime, library, model, rows, columns. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Function)(void);
typedef struct { const Function* (*get_api)(uint32_t version); const char* (*version)(void); } Base;
typedef struct Status Status;
typedef struct Env Env;
typedef struct Session Session;
typedef struct Options Options;
typedef struct Memory Memory;
typedef struct Value Value;

static const Function* api;

#define CALL(number, type) ((type)api[number])

static void well(Status* status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", CALL(2, const char* (*)(const Status*))(status));
  exit(1);
}

int main(int count, char** arguments) {
  void *runtime, *handle, *made;
  union { void* pointer; const Base* (*function)(void); } begin;
  Env* env;
  Options* options;
  Session* session;
  Memory* memory;
  Value *input, *output = NULL;
  const Value* inputs[1];
  const char *names[] = {"x"}, *outputs[] = {"y"};
  int64_t dims[2];
  size_t elements, i;
  float* values;
  double sum = 0;

  if (count != 6 || (runtime = dlopen(arguments[1], RTLD_NOW)) == NULL) {
    fprintf(stderr, "%s\n", count == 6 ? dlerror() : "five arguments are needed");
    return 1;
  }
  begin.pointer = dlsym(runtime, "OrtGetApiBase");
  api = begin.function()->get_api(ABI_VERSION);
  dims[0] = atoi(arguments[4]);
  dims[1] = atoi(arguments[5]);
  elements = (size_t)(dims[0] * dims[1]);
  values = malloc(elements * sizeof(float));
  for (i = 0; i < elements; ++i) values[i] = 0.5f;

  well(CALL(3, Status* (*)(int, const char*, Env**))(3, "loader", &env));
  well(CALL(10, Status* (*)(Options**))(&options));
  well(CALL(29, Status* (*)(Options*, const char*, void**))(options, arguments[2], &handle));
  well(CALL(7, Status* (*)(const Env*, const char*, const Options*, Session**))(env, arguments[3], options, &session));
  well(CALL(69, Status* (*)(int, int, Memory**))(1, 0, &memory));
  well(CALL(49, Status* (*)(const Memory*, void*, size_t, const int64_t*, size_t, int, Value**))(
      memory, values, elements * sizeof(float), dims, 2, 1, &input));
  inputs[0] = input;
  well(CALL(9, Status* (*)(Session*, const void*, const char* const*, const Value* const*, size_t, const char* const*,
                           size_t, Value**))(session, NULL, names, inputs, 1, outputs, 1, &output));
  well(CALL(51, Status* (*)(Value*, void**))(output, &made));
  for (i = 0; i < elements; ++i) sum += ((const float*)made)[i];
  printf("%s %.6f\n", begin.function()->version(), sum);
  return 0;
}
