//! Every symbol that the library exports, under its version.
//!
//! Rust has no symbol versions, so each export is a trampoline in assembly: a label that `.symver`
//! renames to `name@@libcudart.so.12`, and a jump. The build script writes which function is behind
//! which name.

/// One trampoline.
#[cfg(target_arch = "x86_64")]
macro_rules! export {
    ($name:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name),
            concat!(".type peerdma_export_", $name, ", @function"),
            concat!("peerdma_export_", $name, ":"),
            "endbr64",
            "jmp {function}",
            concat!(".symver peerdma_export_", $name, ", ", $name, "@@@libcudart.so.12"),
            ".popsection",
            function = sym $function,
        );
    };
}

/// One trampoline.
#[cfg(target_arch = "aarch64")]
macro_rules! export {
    ($name:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",%progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name),
            concat!(".type peerdma_export_", $name, ", %function"),
            concat!("peerdma_export_", $name, ":"),
            "hint #34", // bti c
            "b {function}",
            concat!(".symver peerdma_export_", $name, ", ", $name, "@@@libcudart.so.12"),
            ".popsection",
            function = sym $function,
        );
    };
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
