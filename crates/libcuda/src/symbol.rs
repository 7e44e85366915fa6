//! What stands at a function's symbol: a few bytes that may be written over, and a jump to the
//! function.
//!
//! UCX watches memory by writing a jump into `cuMemAlloc`, `cuMemFree` and their kin. What it
//! overwrites it moves elsewhere first, to have the function still, and of a processor's
//! instructions it can move few: a call is not among them, nor one that names a place beside
//! itself (UCX `ucm/bistro`). Where that fails it keeps no registration of such memory for later.
//! A compiler's own beginning of a function is this or that; NVIDIA's can be moved.

/// Instructions without effect that UCX of any version can move, as long as a jump to anywhere (12
/// bytes), and a jump. A call's result is in the register that they write, so nothing is in it yet.
#[cfg(target_arch = "x86_64")]
macro_rules! entry {
    () => {
        "mov eax, 0\nmov eax, 0\nmov eax, 0\njmp {answer}"
    };
}

/// A jump. On this processor UCX moves no instructions.
#[cfg(target_arch = "aarch64")]
macro_rules! entry {
    () => {
        "b {answer}"
    };
}

/// Puts a function at a symbol of its name.
macro_rules! symbol {
    ($(#[$doc:meta])* $name:ident ($($arg:ident: $ty:ty),*) $body:block) => {
        const _: () = {
            $(#[$doc])*
            extern "C" fn answer($($arg: $ty),*) -> u32 $body

            // SAFETY: the one function of this name in the library, which is that of the driver's
            // ABI. Arguments stay where they are for the other, which answers.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() -> u32 {
                core::arch::naked_asm!(entry!(), answer = sym answer)
            }
        };
    };
}
