//! What a device with an Ethernet port can do besides (PRM "HCA Capabilities":
//! `per_protocol_networking_offload_caps`, `roce_cap`, `flow_table_nic_cap`).

use crate::command::caps::OF_USERS;
use crate::command::uctx::SENDS_FRAMES;
use crate::layout::bits::Field;
use crate::nic::flow_counter::{LOG_MAX_QUERY, MAX_COUNTERS};
use crate::nic::queue::LOG_MAX_SIZE;
use crate::nic::send::LOG_MAX_LARGE_SEND;
use crate::nic::steering::{LOG_MAX_COUNTERS, MAX_DEPTH};
use crate::nic::tir::LOG_MAX_TABLE;
use crate::nic::vport::{GIDS, LOG_MAX_LIST};

/// Objects of a kind, as a logarithm.
const LOG_OBJECTS: u64 = 12;
/// IPv4 and IPv6.
const L3_TYPES: u64 = 6;
const VERSION_2: u64 = 1 << 2;
const FIRST_SOURCE_PORT: u64 = 0xc000;
const LAST_SOURCE_PORT: u64 = 0xffff;
/// Headers in send requests are not required.
const NOT_REQUIRED: u64 = 2;
const LOG_MAX_TABLE_SIZE: u64 = 20;
const LOG_MAX_TABLES: u64 = 10;
/// Linux lays its tables out in some 80 levels.
const MAX_LEVEL: u64 = MAX_DEPTH as u64;

/// Fields of the general group.
pub(crate) fn general() -> Vec<(Field, u64)> {
    vec![
        (Field::new(0x151, 1), 1),             // rts2rts_qp_udp_sport
        (Field::new(0x1a2, 1), 0),             // ib_virt
        (Field::new(0x1a6, 1), 1),             // nic_flow_table
        (Field::new(0x1b6, 2), 1),             // port_type: Ethernet
        (Field::new(0x1cc, 4), 1),             // max_tc
        (Field::new(0x21c, 1), 1),             // eth_net_offloads
        (Field::new(0x21d, 1), 1),             // roce
        (Field::new(0x260, 1), 0),             // bf: a machine hands stores over one by one
        (Field::new(0x348, 8), LOG_MAX_QUERY), // log_max_flow_counter_bulk
        (Field::new(0x350, 16), MAX_COUNTERS), // max_flow_counter_15_0
        (Field::new(0x363, 5), LOG_OBJECTS),   // log_max_rq
        (Field::new(0x36b, 5), LOG_OBJECTS),   // log_max_sq
        (Field::new(0x373, 5), LOG_OBJECTS),   // log_max_tir
        (Field::new(0x37b, 5), LOG_OBJECTS),   // log_max_tis
        (Field::new(0x380, 1), 1),             // basic_cyclic_rcv_wqe
        (Field::new(0x38b, 5), LOG_OBJECTS),   // log_max_rqt
        (Field::new(0x393, 5), LOG_MAX_TABLE), // log_max_rqt_size
        (Field::new(0x3a3, 5), 12),            // log_max_stride_sz_rq
        (Field::new(0x3ab, 5), 4),             // log_min_stride_sz_rq
        (Field::new(0x3b3, 5), 6),             // log_max_stride_sz_sq
        (Field::new(0x3bb, 5), 6),             // log_min_stride_sz_sq
        (Field::new(0x3db, 5), LOG_MAX_SIZE),  // log_max_wq_sz
        (Field::new(0x3e1, 1), 1),             // disable_local_lb_uc
        (Field::new(0x3e2, 1), 1),             // disable_local_lb_mc
        (Field::new(0x3eb, 5), LOG_MAX_LIST),  // log_max_vlan_list
        (Field::new(0x3f3, 5), LOG_MAX_LIST),  // log_max_current_mc_list
        (Field::new(0x3fb, 5), LOG_MAX_LIST),  // log_max_current_uc_list
        (OF_USERS, SENDS_FRAMES),
    ]
}

/// The group of Ethernet offloads.
pub(crate) fn ethernet() -> Vec<(Field, u64)> {
    vec![
        (Field::new(0x0, 1), 1),                  // csum_cap
        (Field::new(0x1, 1), 1),                  // vlan_cap
        (Field::new(0x7, 1), 1),                  // wqe_vlan_insert
        (Field::new(0x8, 1), 1),                  // self_lb_en_modifiable
        (Field::new(0xb, 5), LOG_MAX_LARGE_SEND), // max_lso_cap
        (Field::new(0x12, 2), NOT_REQUIRED),      // wqe_inline_mode
        (Field::new(0x14, 4), LOG_MAX_TABLE),     // rss_ind_tbl_cap
        (Field::new(0x23, 1), 1),                 // cqe_checksum_full
    ]
}

/// The group of RoCE.
pub(crate) fn roce() -> Vec<(Field, u64)> {
    vec![
        (Field::new(0x4, 1), 1), // sw_r_roce_src_udp_port
        (Field::new(0x8c, 4), L3_TYPES),
        (Field::new(0x98, 8), VERSION_2),
        (Field::new(0xb0, 16), wire::ROCE_PORT.into()),
        (Field::new(0xc0, 16), LAST_SOURCE_PORT),
        (Field::new(0xd0, 16), FIRST_SOURCE_PORT),
        (Field::new(0xf0, 16), GIDS),
    ]
}

/// The group of flow tables: those of the receiving side.
pub(crate) fn flow_tables() -> Vec<(Field, u64)> {
    const RECEIVE: usize = 0x200;
    /// Addresses, type, IP version, tag, IP addresses, fragments, protocol, ports.
    const FIELDS: u64 = 0xfe0f_fc00;
    vec![
        (Field::new(0x0, 1), 1),           // nic_rx_multi_path_tirs
        (Field::new(RECEIVE, 1), 1),       // ft_support
        (Field::new(RECEIVE + 0x2, 1), 1), // flow_counter
        (Field::new(RECEIVE + 0x3, 1), 1), // flow_modify_en
        (Field::new(RECEIVE + 0x4, 1), 1), // modify_root
        (Field::new(RECEIVE + 0x5, 1), 1), // identified_miss_table_mode
        (Field::new(RECEIVE + 0x6, 1), 1), // flow_table_modify
        (Field::new(RECEIVE + 0x22, 6), LOG_MAX_TABLE_SIZE),
        (Field::new(RECEIVE + 0x38, 8), MAX_LEVEL),
        (Field::new(RECEIVE + 0x78, 8), LOG_MAX_TABLES),
        (Field::new(RECEIVE + 0x90, 8), LOG_MAX_COUNTERS),
        (Field::new(RECEIVE + 0x98, 8), 6),  // log_max_destination
        (Field::new(RECEIVE + 0xb8, 8), 16), // log_max_flow
        (Field::new(RECEIVE + 0x100, 32), FIELDS),
        (Field::new(RECEIVE + 0x180, 32), FIELDS),
    ]
}
