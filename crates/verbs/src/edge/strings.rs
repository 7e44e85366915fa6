//! Names of enumerators. Programs print these, scripts search for them, so each is the phrase users
//! know.

use std::ffi::{CStr, c_char, c_int};

fn name(table: &[&'static CStr], index: c_int) -> *const c_char {
    usize::try_from(index)
        .ok()
        .and_then(|index| table.get(index))
        .filter(|name| !name.is_empty())
        .map_or(c"unknown".as_ptr(), |name| name.as_ptr())
}

/// `ibv_node_type_str(3)`.
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(
        &[
            c"",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
        node_type,
    )
}

/// `ibv_port_state_str(3)`.
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(&[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"], state)
}

/// `ibv_event_type_str(3)`.
pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    name(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
            c"Device link speed change",
        ],
        event,
    )
}

/// `ibv_wc_status_str(3)`.
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ],
        status,
    )
}

/// `ibv_wr_opcode_str`.
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    name(
        &[
            c"rdma-write",
            c"rdma-write-with-imm",
            c"send",
            c"send-with-imm",
            c"rdma-read",
            c"atomic-cmp-and-swp",
            c"atomic-fetch-and-add",
            c"local-inv",
            c"bind-mw",
            c"send-with-inv",
            c"tso",
            c"driver1",
            c"",
            c"",
            c"flush",
            c"atomic-write",
        ],
        opcode,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: the functions above return static C strings.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn ends_and_gaps_of_each_enumeration() {
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_node_type_str(0)), "unknown");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_node_type_str(8)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_event_type_str(18)), "GID table change");
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_wr_opcode_str(13)), "unknown");
        assert_eq!(text(ibv_wr_opcode_str(15)), "atomic-write");
    }
}
