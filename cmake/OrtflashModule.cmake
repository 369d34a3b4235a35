# ortflash_warnings(<target>): the warnings that all our C++ keeps free of.
function(ortflash_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
                                           $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ORTFLASH_WERROR}>>:-Werror>)
endfunction()

# ortflash_loadable(<target> EXPORTS <symbol>...): links and installs a shared library that other programs load with
# dlopen; its core objects are part of it.
#
# - Only EXPORTS can be seen from outside (a linker map): two libraries in one process never meet.
# - libstdc++ and libgcc are linked statically: nothing of C++ crosses the border, and so a wheel that was built with a
#   new compiler runs beside an old libstdc++. The C library alone is left as a floor.
# - cudart is linked statically and finds the driver at run time: the library loads on machines without a GPU.
# - Everything that it needs is there when it is linked, not when a user loads it (--no-undefined).
function(ortflash_loadable target)
  cmake_parse_arguments(arg "" "" "EXPORTS" ${ARGN})
  target_link_libraries(${target} PRIVATE Threads::Threads)
  if(ORTFLASH_WITH_CUDA)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()

  list(JOIN arg_EXPORTS "; " exports)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  file(CONFIGURE OUTPUT ${map} CONTENT "{ global: @exports@; local: *; };\n" @ONLY)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${map})
  target_link_options(${target} PRIVATE LINKER:--version-script=${map} LINKER:--no-undefined LINKER:--exclude-libs,ALL
                                        LINKER:--gc-sections -static-libstdc++ -static-libgcc)

  # An editable install loads the library from the source tree, where `cmake --build` refreshes it.
  if(SKBUILD_STATE STREQUAL "editable")
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/ortflash/lib)
  else()
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
    install(TARGETS ${target} LIBRARY DESTINATION lib)
  endif()
endfunction()
