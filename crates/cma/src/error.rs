//! Errors are the kernel's error numbers: a program sees nothing else of them.

/// An errno of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub i32);

macro_rules! errors {
    ($($(#[$meta:meta])* $name:ident $number:literal;)*) => {
        impl Error {
            $($(#[$meta])* pub const $name: Error = Error($number);)*
        }
    };
}

errors! {
    /// No such identifier.
    NOENT 2;
    /// Interrupted, or nothing there to do it with.
    NXIO 6;
    /// Out of memory or of room.
    NOMEM 12;
    /// Not permitted.
    ACCES 13;
    /// A wrong argument, or not in this state.
    INVAL 22;
    /// No room for the answer.
    NOSPC 28;
    /// No such command.
    NOSYS 38;
    /// No device has the address.
    NODEV 19;
    /// Neither of the port spaces.
    PROTONOSUPPORT 93;
    /// Not for this kind of id.
    OPNOTSUPP 95;
    /// A family that is not known.
    AFNOSUPPORT 97;
    /// The port is in use.
    ADDRINUSE 98;
    /// The address or port cannot be had.
    ADDRNOTAVAIL 99;
    /// Already connected.
    ISCONN 106;
    /// The peer does not answer.
    TIMEDOUT 110;
}
