# include(onnxfuse.cmake), then
#   onnxfuse_optimize(TARGET fused MODEL resnet.onnx [OUTPUT resnet.fused.onnx] [DEPENDS weights.bin] [FLAGS --arch x86-64-v3])
# makes a target that builds the model, its library and its manifest, again when the model or what is in DEPENDS changes.
# The properties ONNXFUSE_MODEL and ONNXFUSE_LIBRARY of the target name the files.
cmake_minimum_required(VERSION 3.20)
find_program(ONNXFUSE onnxfuse REQUIRED)

function(onnxfuse_optimize)
  cmake_parse_arguments(PARSE_ARGV 0 it "" "TARGET;MODEL;OUTPUT" "DEPENDS;FLAGS")
  get_filename_component(model "${it_MODEL}" ABSOLUTE)
  get_filename_component(stem "${it_MODEL}" NAME_WLE)
  if(NOT it_OUTPUT)
    set(it_OUTPUT "${stem}.fused.onnx")
  endif()
  get_filename_component(output "${it_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  get_filename_component(folder "${output}" DIRECTORY)
  get_filename_component(name "${output}" NAME_WLE)
  set(library "${folder}/lib${name}.so")
  add_custom_command(
    OUTPUT "${output}" "${library}" "${folder}/${name}.fuse.json"
    COMMAND "${ONNXFUSE}" optimize "${model}" "${output}" --overwrite --quiet ${it_FLAGS}
    DEPENDS "${model}" ${it_DEPENDS}
    COMMENT "onnxfuse optimize ${it_MODEL}"
    VERBATIM)
  add_custom_target(${it_TARGET} ALL DEPENDS "${output}")
  set_target_properties(${it_TARGET} PROPERTIES ONNXFUSE_MODEL "${output}" ONNXFUSE_LIBRARY "${library}")
endfunction()
