//! Functions that calls reach and dlsym(3) does not.
//!
//! UCX and Open MPI watch memory by writing a jump into the functions that take it away, and make
//! the system calls themselves from then on. They mean the C library's, but ask the dynamic linker
//! for a name: where UCX is loaded behind the C library, as Debian links it, or by Open MPI, it
//! would find the functions here, and nobody would hear of memory that goes. So these have the C
//! library's own version and are not its default one: whoever was linked to that version calls
//! them, and a look-up without a version goes on to the C library.

/// The version of the C library's oldest functions (glibc `shlib-versions`).
#[cfg(target_arch = "x86_64")]
macro_rules! oldest {
    () => {
        "GLIBC_2.2.5"
    };
}

/// The version of the C library's oldest functions (glibc `shlib-versions`).
#[cfg(target_arch = "aarch64")]
macro_rules! oldest {
    () => {
        "GLIBC_2.17"
    };
}

/// A jump, behind an indirect branch's landing pad.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "endbr64\njmp {function}"
    };
}

/// A jump, behind an indirect branch's landing pad, `bti c`.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "hint #34\nb {function}"
    };
}

/// Exports functions so, each under a label, which has to be unique.
macro_rules! in_front {
    ($($symbol:literal $label:ident = $function:path;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $label() {
            core::arch::naked_asm!(
                concat!(".symver ", stringify!($label), ", ", $symbol, "@", oldest!()),
                jump!(),
                function = sym $function,
            )
        }
    )*};
}
