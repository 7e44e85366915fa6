//! Static rates (IBA table "Static rate encoding", `enum ibv_rate`) and their conversions.

use std::ffi::{c_int, c_uint};

/// One encodable rate. `mult` is the multiple of 2.5 Gbit/s that the older interface knows, where
/// it knows one.
struct Rate {
    code: c_uint,
    mult: Option<c_int>,
    mbps: c_int,
}

const fn rate(code: c_uint, mult: c_int, mbps: c_int) -> Rate {
    Rate { code, mult: if mult == 0 { None } else { Some(mult) }, mbps }
}

/// "No limit", and the answer for whatever has no code.
const RATE_MAX: c_uint = 0;

const RATES: [Rate; 23] = [
    rate(2, 1, 2500),
    rate(5, 2, 5000),
    rate(3, 4, 10000),
    rate(6, 8, 20000),
    rate(4, 12, 30000),
    rate(7, 16, 40000),
    rate(8, 24, 60000),
    rate(9, 32, 80000),
    rate(10, 48, 120000),
    rate(11, 0, 14062),
    rate(12, 0, 56250),
    rate(13, 0, 112500),
    rate(14, 0, 168750),
    rate(15, 0, 25781),
    rate(16, 0, 103125),
    rate(17, 0, 206250),
    rate(18, 0, 309375),
    rate(19, 11, 28125),
    rate(20, 20, 53125),
    rate(21, 160, 425000),
    rate(22, 240, 637500),
    rate(23, 320, 850000),
    rate(24, 480, 1275000),
];

/// `ibv_rate_to_mult(3)`: −1 for a code without a multiple.
pub(crate) extern "C" fn ibv_rate_to_mult(code: c_uint) -> c_int {
    RATES.iter().find(|rate| rate.code == code).and_then(|rate| rate.mult).unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`.
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|rate| rate.mult == Some(mult)).map_or(RATE_MAX, |rate| rate.code)
}

/// `ibv_rate_to_mbps(3)`: −1 for an unknown code.
pub(crate) extern "C" fn ibv_rate_to_mbps(code: c_uint) -> c_int {
    RATES.iter().find(|rate| rate.code == code).map_or(-1, |rate| rate.mbps)
}

/// `mbps_to_ibv_rate(3)`.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|rate| rate.mbps == mbps).map_or(RATE_MAX, |rate| rate.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_converts_both_ways() {
        for code in 2..=24 {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(code)), code);
            let mult = ibv_rate_to_mult(code);
            assert!(mult == -1 || mult_to_ibv_rate(mult) == code);
        }
        assert_eq!(ibv_rate_to_mult(5), 2);
        assert_eq!(ibv_rate_to_mult(16), -1);
        assert_eq!(ibv_rate_to_mbps(16), 103125);
        assert_eq!(ibv_rate_to_mbps(25), -1);
        assert_eq!(mult_to_ibv_rate(3), RATE_MAX);
    }
}
