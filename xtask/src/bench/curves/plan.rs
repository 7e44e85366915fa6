//! What is plotted, and how much is measured for it.

/// A plot that points are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plot {
    /// GB/s by message size.
    Bandwidth,
    /// Microseconds of half a round trip by message size.
    Latency,
    /// Messages of 8 bytes a second by queue pairs.
    Rate,
    /// Nanoseconds of CPU time of both ends a byte, by message size.
    Cpu,
}

impl Plot {
    /// Its name in a record.
    pub fn name(self) -> &'static str {
        match self {
            Plot::Bandwidth => "bandwidth",
            Plot::Latency => "latency",
            Plot::Rate => "rate",
            Plot::Cpu => "cpu",
        }
    }
}

/// How much is measured.
pub struct Extent {
    /// Message sizes in bytes.
    pub sizes: Vec<u64>,
    pub queue_pairs: Vec<u64>,
    pub rounds: u32,
    /// Messages that one program sends: so many, or so many bytes of them if that is less.
    pub messages: u64,
    bytes: u64,
}

const LARGEST: u64 = 8 << 20;

impl Extent {
    /// Every point.
    pub fn whole(rounds: u32) -> Extent {
        Extent {
            sizes: (0..).map(|n| 2 << (2 * n)).take_while(|size| *size <= LARGEST).collect(),
            queue_pairs: (0..7).map(|n| 1 << n).collect(),
            rounds,
            messages: 100_000,
            bytes: 1 << 30,
        }
    }

    /// Some points, in two minutes.
    pub fn quick() -> Extent {
        Extent {
            sizes: vec![8, 2 << 10, 64 << 10, LARGEST],
            queue_pairs: vec![1, 8, 64],
            rounds: 2,
            messages: 10_000,
            bytes: 256 << 20,
        }
    }

    /// How many messages of this size a program sends.
    pub fn count(&self, bytes: u64) -> u64 {
        (self.bytes / bytes).min(self.messages).max(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_four_from_2_bytes_to_8_mib() {
        let sizes = Extent::whole(1).sizes;
        assert_eq!((sizes.first(), sizes.last(), sizes.len()), (Some(&2), Some(&LARGEST), 12));
        assert!(sizes.windows(2).all(|two| two[1] == 4 * two[0]));
    }
}
