//! Gives the cdylib its soname and its symbol versions.
//!
//! The version nodes are in `libibverbs.map`; which symbol is in which node is said by the
//! `.symver` directives of `src/edge/exports.rs`. Only lld accepts this beside rustc's own version
//! script, which hides every other symbol: it is rustc's default linker on x86-64; elsewhere an
//! option makes the C compiler use it. zig's linker is lld too.

fn main() {
    let map = format!("{}/libibverbs.map", std::env::var("CARGO_MANIFEST_DIR").unwrap());
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var("CARGO_CFG_TARGET_ARCH").unwrap() != "x86_64" {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}
