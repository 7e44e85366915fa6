//! Loads every stand-in and calls every symbol at its version, as a program would.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::skip;

use standins::table::{Kind, Library, Symbol, parse};

struct Unpacked(PathBuf);

impl Unpacked {
    fn new(name: &str) -> Unpacked {
        let folder =
            std::env::temp_dir().join(format!("peerdma-standins-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (file, bytes) in standins::LIBRARIES {
            fs::write(folder.join(file), bytes).unwrap();
        }
        Unpacked(folder)
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a NUL-terminated path; the library has no constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{}: {}", path.display(), last_error());
    handle
}

fn last_error() -> String {
    // SAFETY: dlerror returns NULL or a string valid until the next call on this thread.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return "no error".into();
    }
    // SAFETY: not NULL, see above.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Calls `function` as its kind returns and checks the answer.
fn check(name: &str, kind: Kind, function: *mut c_void) {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let mut bytes = [0xffu8; 24];
    // SAFETY: a stand-in of these kinds ignores its arguments and returns what the type says;
    // `Clear` gets the buffer it may fill.
    unsafe {
        match kind {
            Kind::Errno | Kind::Eperm | Kind::Negative => {
                let function: extern "C" fn() -> c_int = std::mem::transmute(function);
                let expected = match kind {
                    Kind::Errno => libc::EOPNOTSUPP,
                    Kind::Eperm => libc::EPERM,
                    _ => -libc::EOPNOTSUPP,
                };
                assert_eq!(function(), expected, "{name}");
            }
            Kind::MinusOne => {
                let function: extern "C" fn() -> isize = std::mem::transmute(function);
                assert_eq!((function(), errno()), (-1, libc::EOPNOTSUPP), "{name}");
            }
            Kind::Null => {
                let function: extern "C" fn() -> *const c_char = std::mem::transmute(function);
                assert!(function().is_null(), "{name}");
                assert_eq!(errno(), libc::EOPNOTSUPP, "{name}");
            }
            Kind::Zero => {
                let function: extern "C" fn() -> usize = std::mem::transmute(function);
                assert_eq!(function(), 0, "{name}");
            }
            Kind::Void => {
                let function: extern "C" fn() = std::mem::transmute(function);
                function();
            }
            Kind::Clear => {
                let function: extern "C" fn(*mut u8, usize) = std::mem::transmute(function);
                function(bytes.as_mut_ptr(), 20);
                assert_eq!(bytes[19..], [0, 0xff, 0xff, 0xff, 0xff], "{name}");
            }
        }
    }
}

#[test]
fn every_symbol_is_there_at_its_version_and_fails_as_documented() {
    let unpacked = Unpacked::new("all");
    let libraries = parse(standins::SYMBOLS).unwrap();
    assert_eq!(libraries.len(), standins::LIBRARIES.len());
    let mut called = 0;
    for library in &libraries {
        let handle = open(&unpacked.0.join(&library.soname));
        for node in &library.nodes {
            let version = CString::new(node.name.as_str()).unwrap();
            for Symbol { name: symbol, kind, .. } in &node.symbols {
                let name = CString::new(symbol.as_str()).unwrap();
                // SAFETY: a live handle and NUL-terminated names.
                let function = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
                assert!(!function.is_null(), "{symbol}@{}: {}", node.name, last_error());
                check(symbol, *kind, function);
                if library.default_node(symbol) == Some(&node.name) {
                    // SAFETY: as above.
                    let default = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    assert_eq!(default, function, "default of {symbol}");
                }
                called += 1;
            }
        }
    }
    assert_eq!(called, 172);
}

/// The distribution's libraries, where installed, export nothing that the stand-in lacks.
#[test]
fn the_distribution_exports_no_more() {
    let mut compared = 0;
    for library in parse(standins::SYMBOLS).unwrap() {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
        let Some(file) = folders
            .iter()
            .map(|folder| Path::new(folder).join(&library.soname))
            .find(|file| file.exists())
        else {
            continue;
        };
        let output = Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&file)
            .output()
            .expect("nm is installed");
        let ours = exports(&library);
        let theirs: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2))
            .filter(|name| name.contains('@'))
            .map(|name| name.replace("@@", "@"))
            .collect();
        assert!(!theirs.is_empty(), "nm shows nothing of {}", file.display());
        let missing: Vec<&String> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", library.soname);
        compared += 1;
    }
    if compared == 0 {
        skip!("the distribution's libraries are not installed (package ibverbs-providers)");
    }
}

/// Programs and libraries of the distribution that link providers, where installed: nothing is
/// unresolved, no version is missing, and it is ours that they get.
#[test]
fn installed_programs_find_every_symbol() {
    let unpacked = Unpacked::new("programs");
    let libraries = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let candidates = [
        PathBuf::from("/usr/bin/ib_write_bw"),
        libraries.join("libfabric.so.1"),
        libraries.join("ucx/libuct_ib.so.0"),
        libraries.join("ucx/libuct_ib_mlx5.so.0"),
    ];
    let mut programs: Vec<PathBuf> =
        candidates.into_iter().filter(|program| program.exists()).collect();
    for provider in ["mlx5", "efa"] {
        let folder = Path::new("/usr/lib/python3/dist-packages/pyverbs/providers").join(provider);
        let files =
            fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        programs.extend(
            files.filter(|file| file.extension().is_some_and(|extension| extension == "so")),
        );
    }
    if programs.is_empty() {
        skip!("neither perftest, libfabric, UCX nor pyverbs is installed");
    }
    let mut served = 0;
    for program in &programs {
        let output = Command::new("ldd")
            .arg("-r")
            .arg(program)
            .env("LD_LIBRARY_PATH", &unpacked.0)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        for line in text.lines() {
            let ours = standins::LIBRARIES
                .iter()
                .any(|(name, _)| line.trim_start().starts_with(&format!("{name} =>")));
            assert!(!ours || line.contains("peerdma-standins-"), "{}: {line}", program.display());
            // Python's own symbols come from its interpreter.
            let bad = ["undefined symbol", "no version information", "not found"]
                .iter()
                .any(|bad| line.contains(bad));
            assert!(!bad || line.contains("Py"), "{}: {line}", program.display());
        }
        served += usize::from(text.contains("peerdma-standins-"));
    }
    assert!(programs.is_empty() || served > 0, "none of {programs:?} got a stand-in");
}

fn exports(library: &Library) -> BTreeSet<String> {
    let of_node = |node: &standins::table::VersionNode| {
        let name = node.name.clone();
        node.symbols.iter().map(move |symbol| format!("{}@{name}", symbol.name)).collect::<Vec<_>>()
    };
    library.nodes.iter().flat_map(of_node).collect()
}
