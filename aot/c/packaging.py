"""A bundle's files for CMake and pkg-config. They locate the bundle relative to themselves, so it may be moved."""

from __future__ import annotations

from aot_runtime.contract import records
from aot_runtime.contract.variant_names import prefix_of

from .apis import APIS


def cmake_text(index: records.Index) -> str:
    """Return `<bundle>Config.cmake`, with the target `<bundle>::<bundle>`."""
    api = APIS[index.target.backend]
    package, target, library = api.cmake_package, api.cmake_target, api.library
    name, variable = index.name, prefix_of(index).upper()
    return f"""\
# find_package({name}): the target {name}::{name} is the dispatcher of bundle '{name}' for {index.target.arch}, which is
# compiled with the program; {variable}_FOLDER is the folder that {name}_open takes.
# Generated together with the bundle of id {index.id}.
#
# With {name.upper()}_LINK_DRIVER the program is linked with {library}, which find_package({package}) finds. By default
# that is looked up when the program opens a bundle, so that nothing of it is needed where the program is built.

get_filename_component({variable}_FOLDER "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
option({name.upper()}_LINK_DRIVER "Link with {library} instead of looking it up when a bundle is opened" OFF)

if(NOT TARGET {name}::{name})
  find_package(Threads REQUIRED)
  add_library({name} STATIC EXCLUDE_FROM_ALL "${{{variable}_FOLDER}}/src/{name}.c")
  add_library({name}::{name} ALIAS {name})
  target_include_directories({name} PUBLIC "${{{variable}_FOLDER}}/include")
  target_link_libraries({name} PUBLIC Threads::Threads ${{CMAKE_DL_LIBS}} m)
  get_property({variable}_LANGUAGES GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("C" IN_LIST {variable}_LANGUAGES)
    set_target_properties({name} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON)
  else() # it is C++17, too
    set_source_files_properties("${{{variable}_FOLDER}}/src/{name}.c" PROPERTIES LANGUAGE CXX)
    set_target_properties({name} PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON LINKER_LANGUAGE CXX)
  endif()
  set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if({name.upper()}_LINK_DRIVER)
    find_package({package} REQUIRED)
    target_compile_definitions({name} PRIVATE AOT_LINK_DRIVER)
    target_link_libraries({name} PUBLIC {target})
  endif()
endif()
"""


def pkg_config_text(index: records.Index) -> str:
    """Return `<bundle>.pc`, with flags, and the source to compile with the program as the variable `source`."""
    name = index.name
    return f"""\
# Generated together with the bundle of id {index.id}.
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
source=${{prefix}}/src/{name}.c

Name: {name}
Description: Dispatcher of bundle '{name}' for {index.target.arch}; compile ${{source}} with the program
Version: {index.version or "0"}
Cflags: -I${{includedir}}
Libs: -lm -ldl -pthread
"""
