//! How a request is read out of the bytes of its command: every part from the place that the manual
//! gives it.
//!
//! Reading refuses nothing. A number that lies outside of what the driver sent is 0, a list ends
//! where the command does, and what must be there whole is `None` when it is not. So a handler
//! refuses a command that is cut short when it comes to the part that is missing, after what it
//! checks before.

use crate::layout::bits::Field;
use crate::layout::context::Context;
use std::ops::{Range, RangeFrom};

/// A command that was decoded.
pub(crate) trait Parse {
    fn parse(input: &[u8]) -> Self;
}

/// A part of a request, which lies at a `Place` of the command.
pub(crate) trait Part<Place> {
    fn read(place: Place, input: &[u8]) -> Self;
}

/// The place of a part that is spread over the command.
pub(crate) struct Whole;

impl<T: Parse> Part<Whole> for T {
    fn read(_: Whole, input: &[u8]) -> T {
        T::parse(input)
    }
}

/// Structures that begin at this byte, if the command is so long.
impl<T: Parse> Part<RangeFrom<usize>> for Option<T> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Option<T> {
        input.get(place).map(T::parse)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl Part<Field> for $type {
            fn read(place: Field, input: &[u8]) -> $type {
                place.get(input) as $type
            }
        })*
    };
}

numbers! { u8 u16 u32 u64 }

impl Part<Field> for bool {
    fn read(place: Field, input: &[u8]) -> bool {
        place.is_set(input)
    }
}

/// A context that is kept; it is empty when the command is too short for it.
impl Part<Range<usize>> for Context {
    fn read(place: Range<usize>, input: &[u8]) -> Context {
        input.get(place).unwrap_or_default().into()
    }
}

impl Part<Range<usize>> for Option<Context> {
    fn read(place: Range<usize>, input: &[u8]) -> Option<Context> {
        input.get(place).map(Context::from)
    }
}

/// A context as far as the command reaches.
impl Part<RangeFrom<usize>> for Context {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Context {
        input.get(place).unwrap_or_default().into()
    }
}

/// Bytes from this one on, of which those that are not there are 0.
impl<const N: usize> Part<usize> for [u8; N] {
    fn read(place: usize, input: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| input.get(place + at).copied().unwrap_or(0))
    }
}

/// Bytes from this one on.
impl<const N: usize> Part<RangeFrom<usize>> for Option<[u8; N]> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Option<[u8; N]> {
        input.get(place)?.first_chunk().copied()
    }
}

impl Part<RangeFrom<usize>> for Vec<u8> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Vec<u8> {
        input.get(place).unwrap_or_default().to_vec()
    }
}

/// A list of entries up to the end of the command.
impl<const N: usize> Part<RangeFrom<usize>> for Vec<[u8; N]> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Vec<[u8; N]> {
        input.get(place).unwrap_or_default().as_chunks().0.to_vec()
    }
}

impl Part<RangeFrom<usize>> for Vec<u32> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Vec<u32> {
        Vec::read(place, input).into_iter().map(u32::from_be_bytes).collect()
    }
}

impl Part<RangeFrom<usize>> for Vec<u64> {
    fn read(place: RangeFrom<usize>, input: &[u8]) -> Vec<u64> {
        Vec::read(place, input).into_iter().map(u64::from_be_bytes).collect()
    }
}

/// Declares requests: each part by its name in the manual, its type and its place.
macro_rules! request {
    ($(
        $(#[$attribute:meta])*
        $name:ident {
            $($(#[$part_attribute:meta])* $part:ident: $type:ty = $place:expr,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, PartialEq, Debug, Default)]
            pub(crate) struct $name {
                $($(#[$part_attribute])* pub(crate) $part: $type,)*
            }

            impl $crate::request::part::Parse for $name {
                fn parse(input: &[u8]) -> $name {
                    $name { $($part: $crate::request::part::Part::read($place, input),)* }
                }
            }
        )*
    };
}

pub(crate) use request;

#[cfg(test)]
mod tests {
    use super::*;

    request! {
        Sample {
            number: u16 = Field::new(0x8, 16),
            flag: bool = Field::new(0x1f, 1),
            context: Context = 4..8,
            gid: Option<[u8; 4]> = 4..,
            list: Vec<u32> = 8..,
            inner: Inner = Whole,
            behind: Option<Inner> = 12..,
        }

        Inner {
            first: u8 = Field::new(0, 8),
        }
    }

    #[test]
    fn every_part_is_read_from_its_place() {
        let sample = Sample::parse(&[9, 1, 2, 1, 4, 5, 6, 7, 0, 0, 1, 0, 8, 0, 0, 3, 255]);
        let expected = Sample {
            number: 0x102,
            flag: true,
            context: [4, 5, 6, 7][..].into(),
            gid: Some([4, 5, 6, 7]),
            list: vec![0x100, 0x0800_0003],
            inner: Inner { first: 9 },
            behind: Some(Inner { first: 8 }),
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn what_is_not_there_is_nothing() {
        assert_eq!(Sample::parse(&[]), Sample::default());
        let short = Sample::parse(&[0, 1, 2, 1, 4, 5, 6]);
        assert_eq!(short, Sample { number: 0x102, flag: true, ..Sample::default() });
    }
}
