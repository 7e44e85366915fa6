//! A refused call.

use crate::codes;
use cuda::sys::Code;

/// The code that a function returns: never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(u32);

/// Result of a call.
pub type Res<T = ()> = Result<T, Error>;

impl Error {
    /// `cudaErrorInvalidValue`.
    pub const INVALID_VALUE: Error = Error(1);
    /// `cudaErrorInvalidPitchValue`.
    pub const INVALID_PITCH: Error = Error(12);
    /// `cudaErrorInvalidMemcpyDirection`.
    pub const INVALID_DIRECTION: Error = Error(21);
    /// `cudaErrorInsufficientDriver`.
    pub const INSUFFICIENT_DRIVER: Error = Error(35);
    /// `cudaErrorMissingConfiguration`.
    pub const MISSING_CONFIGURATION: Error = Error(52);
    /// `cudaErrorNotSupported`.
    pub const NOT_SUPPORTED: Error = Error(801);
}

impl Code for Error {
    const INVALID: Error = Error::INVALID_VALUE;
    const UNKNOWN: Error = Error(999);

    fn code(self) -> u32 {
        self.0
    }
}

/// What a function of the driver's answered, in the runtime's words: the numbers are the same. One
/// that the runtime has no name for becomes `cudaErrorUnknown`.
pub fn answer(code: u32) -> Res {
    match code {
        0 => Ok(()),
        code if codes::find(code).is_some() => Err(Error(code)),
        _ => Err(Error::UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_drivers_where_the_runtime_has_them() {
        assert_eq!(answer(0), Ok(()));
        assert_eq!(answer(201), Err(Error(201)));
        assert_eq!(answer(202), Err(Error::UNKNOWN));
    }
}
