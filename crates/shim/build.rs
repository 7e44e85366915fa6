//! Gives what is linked here, an example that tests preload, the C library's symbol versions, for
//! `src/front.rs`. Only lld accepts them beside rustc's own version script: it is rustc's default
//! linker on x86-64; elsewhere an option makes the C compiler use it.

fn main() {
    let map = format!("{}/preload.map", std::env::var("CARGO_MANIFEST_DIR").expect("cargo's"));
    println!("cargo::rerun-if-changed={map}");
    println!("cargo::rustc-link-arg=-Wl,-T,{map}");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|processor| processor != "x86_64") {
        println!("cargo::rustc-link-arg=-fuse-ld=lld");
    }
}
