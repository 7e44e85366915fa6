//! Durations that the specification encodes in five bits: the RNR NAK timer and the local ACK
//! timeout.

use std::time::Duration;

/// RNR NAK timer values in units of 10 microseconds, by code (IBA 9.7.5.2.8).
const RNR_TENS_OF_MICROSECONDS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a requester waits after an RNR NAK with this timer code, of which the low five bits
/// count: 10 µs (code 1) to 655.36 ms (code 0).
pub const fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(10 * RNR_TENS_OF_MICROSECONDS[(code & 0x1f) as usize] as u64)
}

/// How long a requester waits for an acknowledge: 4.096 µs · 2^`code`, of which the low five bits
/// count; `None` for code 0, which waits for ever (IBA 9.7.6.1.3).
pub const fn local_ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        exponent => Some(Duration::from_nanos(4096 << exponent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timers_are_those_of_the_specification() {
        let milliseconds = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, expected) in milliseconds.into_iter().enumerate() {
            let expected = Duration::from_micros((expected * 1000.0_f64).round() as u64);
            assert_eq!(rnr_timer(code as u8), expected, "code {code}");
            assert_eq!(rnr_timer(code as u8 | 0xe0), expected, "only five bits count");
        }
    }

    #[test]
    fn ack_timeouts_double() {
        assert_eq!(local_ack_timeout(0), None);
        assert_eq!(local_ack_timeout(32), None);
        assert_eq!(local_ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(local_ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(local_ack_timeout(31), Some(Duration::from_nanos(8_796_093_022_208)));
    }
}
