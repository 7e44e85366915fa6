//! How a library exports a function under its symbol version.
//!
//! Rust has no symbol versions, so each export is a trampoline in assembly: a label that `.symver`
//! renames to `name@@libcudart.so.12` or `…13`, and a jump. The libraries' build scripts write
//! which function is behind which name (`library.rs`).

/// One trampoline: in this library's version, under this name, to this function.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! export {
    ($library:literal, $name:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name),
            concat!(".type peerdma_export_", $name, ", @function"),
            concat!("peerdma_export_", $name, ":"),
            "endbr64",
            "jmp {function}",
            concat!(".symver peerdma_export_", $name, ", ", $name, "@@@", $library),
            ".popsection",
            function = sym $function,
        );
    };
}

/// One trampoline: in this library's version, under this name, to this function.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! export {
    ($library:literal, $name:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",%progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name),
            concat!(".type peerdma_export_", $name, ", %function"),
            concat!("peerdma_export_", $name, ":"),
            "hint #34", // bti c
            "b {function}",
            concat!(".symver peerdma_export_", $name, ", ", $name, "@@@", $library),
            ".popsection",
            function = sym $function,
        );
    };
}
