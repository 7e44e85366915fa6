//! Builds each stand-in from `symbols.txt`: a C file of one-line functions, a version script, and
//! the C compiler.
//!
//! C and not Rust, because the linker then needs nothing special for symbol versions, and the
//! result depends on the C library alone.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/table.rs"]
mod table;

use table::{Kind, Library, Symbol};

fn main() {
    println!("cargo::rerun-if-changed=symbols.txt");
    println!("cargo::rerun-if-changed=src/table.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let libraries = match table::parse(
        &fs::read_to_string("symbols.txt").expect("symbols.txt is in the crate"),
    ) {
        Ok(libraries) => libraries,
        Err(error) => panic!("symbols.txt: {error}"),
    };
    let mut listing = String::from("&[\n");
    for library in &libraries {
        let file = build(library, &out);
        writeln!(listing, "    ({:?}, include_bytes!({file:?})),", library.soname)
            .expect("strings take all");
    }
    listing.push(']');
    fs::write(out.join("libraries.rs"), listing).expect("OUT_DIR is writable");
}

fn build(library: &Library, out: &Path) -> PathBuf {
    let source = out.join(format!("{}.c", library.soname));
    let script = out.join(format!("{}.map", library.soname));
    let file = out.join(&library.soname);
    fs::write(&source, c_source(library)).expect("OUT_DIR is writable");
    fs::write(&script, version_script(library)).expect("OUT_DIR is writable");
    let compiler = compiler();
    let output = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-O2",
            "-s",
            "-nostartfiles",
            "-Wl,--as-needed",
            "-Wl,--build-id=none",
        ])
        .arg(format!("-Wl,-soname,{}", library.soname))
        .arg(format!("-Wl,--version-script,{}", script.display()))
        .args(["-Wl,-z,noexecstack", "-Wl,-z,defs", "-o"])
        .args([&file, &source])
        .output();
    match output {
        Ok(output) if output.status.success() => file,
        Ok(output) => panic!(
            "{compiler} cannot build {}: {}",
            library.soname,
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!(
            "cannot start the C compiler {compiler}: {error}; install gcc or clang, or set CC"
        ),
    }
}

/// The C compiler for the target: `CC_<target>`, `CC`, a cross compiler by its usual name, `cc`.
fn compiler() -> String {
    let target = env::var("TARGET").unwrap_or_default();
    let specific = env::var(format!("CC_{}", target.replace('-', "_")));
    if let Ok(compiler) = specific.or_else(|_| env::var("CC")) {
        return compiler;
    }
    if env::var("HOST").is_ok_and(|host| host == target) {
        return "cc".into();
    }
    let architecture = target.split('-').next().unwrap_or_default();
    format!("{architecture}-linux-gnu-gcc")
}

fn c_source(library: &Library) -> String {
    let mut source = String::from("#include <errno.h>\n#include <string.h>\n");
    for node in &library.nodes {
        for Symbol { name: symbol, kind, live } in &node.symbols {
            let default = library.default_node(symbol) == Some(node.name.as_str());
            let versioned = library.versions(symbol) > 1;
            let label = if versioned {
                format!("{symbol}__{}", node.name.replace('.', "_"))
            } else {
                symbol.clone()
            };
            source.push_str(&match live {
                Some(arguments) => c_live_function(*kind, symbol, &label, *arguments),
                None => c_function(*kind, &label),
            });
            if versioned {
                let at = if default { "@@" } else { "@" };
                writeln!(source, "__asm__(\".symver {label},{symbol}{at}{}\");", node.name)
                    .expect("strings take all");
            }
        }
    }
    source
}

/// A function that calls `peerdma_` and its name, if whoever is preloaded has that, with all its
/// arguments: each is passed as one machine word, as every integer and pointer is.
fn c_live_function(kind: Kind, symbol: &str, label: &str, arguments: usize) -> String {
    let list = |prefix: &str| {
        let all: Vec<String> = (0..arguments).map(|number| format!("{prefix}a{number}")).collect();
        all.join(", ")
    };
    let (declared, passed) = (list("long "), list(""));
    let fails = c_function(kind, &format!("fails_{label}"));
    format!(
        "extern long peerdma_{symbol}({declared}) __attribute__((weak));\nstatic {fails}\
         long {label}({declared}) {{\n    return peerdma_{symbol} ? peerdma_{symbol}({passed}) : \
         (long)fails_{label}();\n}}\n"
    )
}

fn c_function(kind: Kind, label: &str) -> String {
    match kind {
        Kind::Errno => format!("int {label}(void) {{ return EOPNOTSUPP; }}\n"),
        Kind::Eperm => format!("int {label}(void) {{ return EPERM; }}\n"),
        Kind::Negative => format!("int {label}(void) {{ return -EOPNOTSUPP; }}\n"),
        Kind::MinusOne => format!("long {label}(void) {{ errno = EOPNOTSUPP; return -1; }}\n"),
        Kind::Null => format!("void *{label}(void) {{ errno = EOPNOTSUPP; return 0; }}\n"),
        Kind::Zero => format!("long {label}(void) {{ return 0; }}\n"),
        Kind::Void => format!("void {label}(void) {{}}\n"),
        Kind::Clear => format!("void {label}(void *p, size_t n) {{ if (p) memset(p, 0, n); }}\n"),
    }
}

fn version_script(library: &Library) -> String {
    let mut script = String::new();
    for (index, node) in library.nodes.iter().enumerate() {
        let names: Vec<&str> = node.symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        let rest = if index == 0 { " local: *;" } else { "" };
        let parent = node.parent.as_deref().map(|parent| format!(" {parent}")).unwrap_or_default();
        writeln!(script, "{} {{ global: {};{rest} }}{parent};", node.name, names.join("; "))
            .expect("strings take all");
    }
    script
}
