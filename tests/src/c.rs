//! C programs, the tests' own (in the folders of `tests/c`) and packages' examples: compiled
//! against the distribution's headers, as any user's program is.

use crate::run::{open_to_everybody, shared_dir};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the tests' own are.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c");

/// Compiles the `NAME.c` in a folder of `tests/c` into a shared folder, once for each change of it
/// or of the headers it includes, and gives the program's path.
///
/// Every user can run the program. Test binaries of one checkout that run at the same time share
/// it.
///
/// # Errors
/// The reason why it cannot be compiled here: no C compiler, or no verbs headers. A test skips with
/// it.
///
/// # Panics
/// When the source is missing or the compiler complains about it, be it a warning: that is a failed
/// test.
pub fn c_program(name: &str) -> Result<PathBuf, String> {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        return Err("the verbs headers are not installed (package libibverbs-dev)".to_owned());
    }
    let source = source_of(name, "c");
    let text: String = with_headers(&source).iter().map(|file| read(file)).collect();
    let mut libraries = vec!["-lm", "-lpthread", "-libverbs", "-ldl"];
    if text.contains("<rdma/rdma_cma.h>") {
        if !Path::new("/usr/include/rdma/rdma_cma.h").is_file() {
            return Err("librdmacm's headers are not installed (package librdmacm-dev)".to_owned());
        }
        libraries.push("-lrdmacm");
    }
    if text.contains("<ucp/api/ucp.h>") {
        if !Path::new("/usr/include/ucp/api/ucp.h").is_file() {
            return Err("UCX's headers are not installed (package libucx-dev)".to_owned());
        }
        libraries.extend(["-lucp", "-lucs"]);
    }
    if text.contains("<librpma.h>") {
        if !Path::new("/usr/include/librpma.h").is_file() {
            return Err("librpma's headers are not installed (package librpma-dev)".to_owned());
        }
        libraries.push("-lrpma");
    }
    if text.contains("<infiniband/mlx5dv.h>") {
        libraries.push("-lmlx5");
    }
    compile(&source, &["-Wall", "-Werror", "-I", OWN], &libraries)
}

/// Compiles a source as [`c_program`] does, linked to a library where that lies: the program has
/// an RPATH to it, which the dynamic linker follows before `LD_LIBRARY_PATH`.
///
/// # Errors
/// As [`c_program`]. A test skips with it.
///
/// # Panics
/// When the source is missing or the compiler complains about it.
pub fn c_program_with(name: &str, library: &Path) -> Result<PathBuf, String> {
    let folder = library.parent().expect("a file's folder").display().to_string();
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{folder}");
    let library = library.display().to_string();
    compile(&source_of(name, "c"), &["-Wall", "-Werror", "-I", OWN], &[&library, &rpath, "-ldl"])
}

/// Compiles the `NAME.cc` in a folder of `tests/c`, a program of gloo's, as [`c_program`] does.
///
/// # Errors
/// The reason why it cannot be compiled here: no C++ compiler, or no gloo. A test skips with it.
///
/// # Panics
/// When the source is missing or the compiler refuses it.
pub fn gloo_program(name: &str) -> Result<PathBuf, String> {
    if !crate::has("c++") {
        return Err("c++ is not installed (package g++)".to_owned());
    }
    if !Path::new("/usr/include/gloo/transport/ibverbs").is_dir() {
        return Err("gloo is not installed (package libgloo-dev)".to_owned());
    }
    // The package has no libgloo.so to link with.
    let libraries = ["-l:libgloo.so.0", "-lpthread"];
    compile_by(Path::new("c++"), &source_of(name, "cc"), name, &["-std=c++17"], &libraries)
}

/// Compiles a source as [`c_program`] does, but against the libfabric of this root, where it is to
/// run; see [`crate::next_debian`].
///
/// # Errors
/// The reason why it cannot be compiled here: no C compiler, or no verbs headers. A test skips with
/// it.
///
/// # Panics
/// When the source is missing or the compiler complains about it.
pub fn fabric_program(root: &Path, name: &str) -> Result<PathBuf, String> {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        return Err("the verbs headers are not installed (package libibverbs-dev)".to_owned());
    }
    let (headers, library) = crate::debian::libfabric(root);
    let (headers, library) = (headers.display().to_string(), library.display().to_string());
    let flags = ["-Wall", "-Werror", "-I", OWN, "-isystem", &headers];
    // What that library needs of a newer C library is there where the program runs.
    let libraries = [&library, "-Wl,--allow-shlib-undefined", "-libverbs", "-ldl"];
    compile(&source_of(name, "c"), &flags, &libraries)
}

/// Compiles a source as [`c_program`] does, but with CUDA 13's headers, and linked to NVIDIA's
/// `libcudart.so.13`.
///
/// # Errors
/// The reason why it cannot be compiled here: no C compiler, no verbs headers, or no wheels of
/// CUDA 13. A test skips with it.
///
/// # Panics
/// When the source is missing or the compiler complains about it.
pub fn cuda13_program(name: &str) -> Result<PathBuf, String> {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        return Err("the verbs headers are not installed (package libibverbs-dev)".to_owned());
    }
    let nvidia = crate::Wheels::installed()?;
    let (headers, library) = (nvidia.cuda13_headers()?, nvidia.runtime(13)?);
    let (headers, library) = (headers.display().to_string(), library.display().to_string());
    let flags = ["-Wall", "-Werror", "-I", OWN, "-isystem", &headers];
    compile(&source_of(name, "c"), &flags, &[&library, "-libverbs"])
}

/// Compiles a source as [`c_program`] does, but for a program to load while it runs.
///
/// # Errors
/// As [`c_program`]. A test skips with it.
///
/// # Panics
/// As [`c_program`].
pub fn c_plugin(name: &str) -> Result<PathBuf, String> {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        return Err("the verbs headers are not installed (package libibverbs-dev)".to_owned());
    }
    let flags = ["-Wall", "-Werror", "-shared", "-fPIC", "-I", OWN];
    compile(&source_of(name, "c"), &flags, &["-libverbs"])
}

/// Compiles a source as [`c_program`] does, but for a program to preload.
///
/// # Errors
/// The reason why it cannot be compiled here: no C compiler. A test skips with it.
///
/// # Panics
/// When the source is missing or the compiler complains about it.
pub fn c_library(name: &str) -> Result<PathBuf, String> {
    compile(&source_of(name, "c"), &["-Wall", "-Werror", "-shared", "-fPIC"], &[])
}

/// Compiles an example that a package brings as a source, as [`c_program`] does.
///
/// # Errors
/// The reason why it cannot be compiled here: no C compiler, or the package is missing. A test
/// skips with it.
///
/// # Panics
/// When the compiler refuses it: that is a failed test.
pub fn c_example(package: &str, name: &str, libraries: &[&str]) -> Result<PathBuf, String> {
    let examples = Path::new("/usr/share/doc").join(package).join("examples");
    let source = examples.join(name).with_extension("c");
    if !source.is_file() {
        return Err(format!("{} is not installed (package {package})", source.display()));
    }
    compile(&source, &[], libraries)
}

/// Compiles a source as [`c_program`] does, but by an MPI library's compiler; `mpi` tells that
/// library from others.
pub(crate) fn mpi_program(name: &str, mpi: &str, compiler: &Path) -> Result<PathBuf, String> {
    let source = source_of(name, "c");
    compile_by(compiler, &source, &format!("{name}-{mpi}"), &["-Wall", "-Werror"], &[])
}

/// The one file of this name and ending in the folders of `tests/c`.
fn source_of(name: &str, ending: &str) -> PathBuf {
    let folders = Path::new(OWN).read_dir().expect("the folder of C programs").flatten();
    let sources = folders.map(|folder| folder.path().join(name).with_extension(ending));
    let mut found = sources.filter(|source| source.is_file());
    let source = found.next().unwrap_or_else(|| panic!("no folder of {OWN} has {name}.{ending}"));
    assert!(found.next().is_none(), "two folders of {OWN} have {name}.{ending}");
    source
}

/// A source, and the headers of ours that it includes; those are beside it or in `tests/c`.
fn with_headers(source: &Path) -> Vec<PathBuf> {
    let mut files = vec![source.to_path_buf()];
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        let text = read(&file);
        let names = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        for name in names.filter_map(|rest| rest.strip_suffix('"')) {
            let beside = file.parent().into_iter().chain([Path::new(OWN)]);
            let header = beside.map(|folder| folder.join(name)).find(|path| path.is_file());
            files.extend(header.filter(|header| !files.contains(header)));
        }
        at += 1;
    }
    files
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn compile(source: &Path, flags: &[&str], libraries: &[&str]) -> Result<PathBuf, String> {
    let name = source.file_stem().expect("a file").to_string_lossy();
    compile_by(Path::new("cc"), source, &name, flags, libraries)
}

/// The same by this compiler, to a program of this name.
fn compile_by(
    compiler: &Path,
    source: &Path,
    name: &str,
    flags: &[&str],
    libraries: &[&str],
) -> Result<PathBuf, String> {
    if !crate::has("cc") {
        return Err("cc is not installed (package gcc)".to_owned());
    }
    let folder = folder_of(source);
    let program = folder.join(name);
    if up_to_date(&program, source) {
        return Ok(program);
    }
    // Renamed into place: another test never meets half a program, nor "text file busy".
    let half = tempfile::Builder::new()
        .prefix(&format!("{name}."))
        .tempdir_in(&folder)
        .expect("a temporary folder");
    let half = half.path().join(name);
    let output = Command::new(compiler)
        .args(["-O2", "-o"])
        .arg(&half)
        .args(flags)
        .arg(source)
        .args(libraries)
        .output()
        .expect("the compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not compile:\n{said}", source.display());
    std::fs::rename(&half, &program).expect("the compiled program");
    Ok(program)
}

/// A folder for programs whose sources are beside this one: another checkout's may differ.
fn folder_of(source: &Path) -> PathBuf {
    let folder = shared_dir().join(name_of_folder(source));
    std::fs::create_dir_all(&folder).expect("a folder for programs");
    open_to_everybody(&folder);
    folder
}

fn name_of_folder(source: &Path) -> String {
    let mut hash = DefaultHasher::new();
    source.parent().hash(&mut hash);
    format!("c-{:016x}", hash.finish())
}

/// Whether `program` was made after the last change of `source` and of the headers it includes.
fn up_to_date(program: &Path, source: &Path) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let Some(built) = changed(program) else { return false };
    with_headers(source).iter().all(|path| changed(path).is_some_and(|at| at < built))
}

#[cfg(test)]
mod tests {
    use super::{c_program, name_of_folder, source_of, with_headers};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    #[test]
    fn checkouts_have_programs_of_their_own() {
        let name = |source| name_of_folder(Path::new(source));
        assert_ne!(name("/here/tests/c/a.c"), name("/there/tests/c/a.c"));
        assert_eq!(name("/here/tests/c/a.c"), name("/here/tests/c/b.c"));
    }

    #[test]
    fn a_program_is_compiled_once_and_everybody_can_run_it() {
        let program = match c_program("crosscheck") {
            Ok(program) => program,
            Err(reason) => crate::skip!("{reason}"),
        };
        let first = std::fs::metadata(&program).unwrap();
        assert_eq!(first.permissions().mode() & 0o005, 0o005);
        let again = std::fs::metadata(c_program("crosscheck").unwrap()).unwrap();
        assert_eq!(first.modified().unwrap(), again.modified().unwrap());
    }

    #[test]
    fn headers_of_headers_are_those_of_a_program() {
        let files = with_headers(&source_of("cm_stress", "c"));
        let has = |name: &str| files.iter().any(|file| file.ends_with(name));
        assert!(has("cm/stress_server.h") && has("cm/stress.h"), "{files:?}");
        let files = with_headers(&source_of("moving_gpu", "c"));
        assert_eq!(files.iter().filter(|file| file.ends_with("c/rows.h")).count(), 1, "{files:?}");
    }
}
