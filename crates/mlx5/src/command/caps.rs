//! Capabilities (PRM "HCA Capabilities", `cmd_hca_cap`, `atomic_caps` of `mlx5_ifc.h`): what the
//! device says that it can do, current and at most. What is not built is 0.

use crate::command::{ethernet_caps, uctx};
use crate::handlers::general_object;
use crate::keys::{key_list, memic};
use crate::layout::bits::Field;
use crate::layout::head::Status;
use crate::layout::limits::{
    LOG_MAX_CQ_SIZE, LOG_MAX_EQ_SIZE, LOG_QP_NUMBERS as LOG_SET_ASIDE, MAX_EQS, OWN_DEVICE,
};
use crate::object::pools::{self, MAX_COUNTER_SETS};
use crate::request::function::SetHcaCap;
use crate::work::memory_copy;
use hca::DeviceAttr;

/// Bytes of each group in commands.
pub(crate) const LEN: usize = 0x1000;
/// Bytes of a group that mean anything.
const GROUP_LEN: usize = 0x100;

const GENERAL: u16 = 0x0;
const ETHERNET: u16 = 0x1;
const ODP: u16 = 0x2;
const ATOMIC: u16 = 0x3;
const DEBUG: u16 = 0xd;
const DEVICE_MEMORY: u16 = 0xf;
const GENERAL_2: u16 = 0x20;
const ROCE: u16 = 0x4;
const FLOW_TABLES: u16 = 0x7;

/// Nanoseconds: completions carry the time since the device was opened.
const DEVICE_FREQUENCY_KHZ: u64 = 1_000_000;
/// Longest send request: 16 basic blocks of 64 bytes.
pub(crate) const MAX_SEND_WQE: u64 = 1024;
/// Longest receive request.
pub(crate) const MAX_RECEIVE_WQE: u64 = 512;
/// Longest message, 2^30 bytes.
pub(crate) const LOG_MAX_MESSAGE: u64 = 30;
/// What mlx5 asks the driver to write into 8-byte results: the processor's own order.
const HOST_ENDIANNESS: u64 = 1;

const ATOMIC_8B_MODE: Field = Field::new(0x40, 2);
const ATOMIC_8B_MODE_1: Field = Field::new(0x46, 1);
const ATOMIC_OPERATIONS: Field = Field::new(0x90, 16);
const ATOMIC_SIZE_QP: Field = Field::new(0xb0, 16);
const RESOURCE_DUMP: Field = Field::new(0x9, 1);
const QUERY_VUID: Field = Field::new(0x92, 1);
/// Requests change all 6 bits of a key's `log_page_size` (`umr_log_entity_size_5`): an implicit key
/// has parts of 16 GiB where addresses have 56 bits.
const WIDE_PAGE_SIZES: Field = Field::new(0x98, 1);
/// `log_reserved_qpn_granularity`.
const LOG_QP_NUMBERS: Field = Field::new(0x93, 5);
/// Largest parts of one length (`max_mkey_log_entity_size_fixed_buffer`).
const LOG_MAX_PART: Field = Field::new(0x3a2, 6);
/// What user contexts may be granted (`uctx_cap`).
pub(crate) const OF_USERS: Field = Field::new(0x6a0, 32);
/// Compare and swap, fetch and add.
const ATOMIC_SWAP_AND_ADD: u64 = 1 | 2;

/// Fields of the general group, and what we set them to. Sizes are logarithms.
fn general(attr: &DeviceAttr) -> Vec<(Field, u64)> {
    let log = |number: u32| u64::from((number + 1).ilog2());
    vec![
        (Field::new(0x80, 8), u64::from(attr.max_srq_wr.ilog2())), // log_max_srq_sz
        (Field::new(0x88, 8), log(attr.max_qp_wr - 1)),            // log_max_qp_sz
        (Field::new(0x9b, 5), log(attr.max_qp)),                   // log_max_qp
        (Field::new(0xab, 5), log(attr.max_srq - 1)),              // log_max_srq
        (Field::new(0xc8, 8), LOG_MAX_CQ_SIZE),
        (Field::new(0xdb, 5), log(attr.max_cq - 1)), // log_max_cq
        (Field::new(0xe0, 8), LOG_MAX_EQ_SIZE),
        (Field::new(0xea, 6), log(attr.max_mr)), // log_max_mkey
        (Field::new(0xfc, 4), u64::from(MAX_EQS.ilog2())), // log_max_eq
        (Field::new(0x109, 7), 63),              // log_max_mrw_sz
        (Field::new(0x14a, 6), u64::from(attr.max_qp_rd_atom.ilog2())), // log_max_ra_req_qp
        (Field::new(0x15a, 6), u64::from(attr.max_qp_rd_atom.ilog2())), // log_max_ra_res_qp
        (Field::new(0x169, 1), 1),               // rts2rts_qp_counters_set_id
        (Field::new(0x180, 1), 1),               // out_of_seq_cnt
        (Field::new(0x181, 1), 1),               // vport_counters
        (Field::new(0x182, 1), 1),               // retransmission_q_counters
        (Field::new(0x183, 1), 1),               // debug
        (Field::new(0x186, 10), MAX_COUNTER_SETS.into()), // max_qp_cnt
        (Field::new(0x1a8, 1), 1),               // device_memory
        (Field::new(0x1a9, 1), 1),               // mcam_reg
        (Field::new(0x1b1, 1), 1),               // enhanced_error_q_counters
        (Field::new(0x1a2, 1), 1),               // ib_virt: the port is asked by vport commands
        (Field::new(0x1c3, 5), LOG_MAX_MESSAGE), // log_max_msg
        (Field::new(0x1fc, 4), 1),               // cqe_version: queues by user index
        (Field::new(0x1b8, 8), 1),               // num_ports; port_type 0 is InfiniBand
        (Field::new(0x100, 8), 4),               // max_indirection
        (Field::new(0x108, 1), 1),               // fixed_buffer_size: KSM
        (Field::new(0x118, 1), 1),               // umr_extended_translation_offset
        (Field::new(0x119, 1), 1),               // null_mkey
        (Field::new(0x112, 6), 2),               // log_max_bsf_list_size
        (Field::new(0x147, 1), 1),               // sig_crc64_xp10
        (Field::new(0x148, 1), 1),               // sig_crc32c
        (Field::new(0x1f0, 1), 1),               // sig_block_4048
        (Field::new(0x20f, 1), 1),               // drain_sigerr
        (Field::new(0x212, 1), 1),               // sigerr_cqe
        (Field::new(0x217, 1), 1),               // sho: block signatures
        (Field::new(0x480, 1), 1),               // sigerr_domain_and_sig_type
        (Field::new(0x400, 64), general_object::KINDS), // general_obj_types
        (Field::new(0x6b, 5), memory_copy::LOG_MAX), // log_dma_mmo_max_size
        (Field::new(0x748, 1), 1),               // dma_mmo_qp
        (Field::new(0x463, 5), uctx::LOG_MAX),   // log_max_uctx
        (Field::new(0x46b, 5), pools::LOG_MAX_USER_MEMORIES), // log_max_umem
        (Field::new(0x11a, 6), key_list::LOG_MAX_ENTRIES), // log_max_klm_list_size
        (Field::new(0x221, 1), 1),               // cq_resize
        (Field::new(0x222, 1), 1),               // cq_moderation
        (Field::new(0x231, 1), 1),               // imaicl: memory windows
        (Field::new(0x227, 1), 1),               // pg: on-demand paging
        (Field::new(0x228, 1), 1),               // block_lb_mc
        (Field::new(0x21e, 1), 1),               // atomic
        (Field::new(0x23c, 1), 1),               // xrc
        (Field::new(0x23d, 1), 1),               // ud
        (Field::new(0x23e, 1), 1),               // uc
        (Field::new(0x23f, 1), 1),               // rc
        (Field::new(0x24a, 6), 5),               // uar_sz: 32 MiB
        (Field::new(0x258, 8), 12),              // log_pg_sz
        (Field::new(0x260, 1), 1),               // bf
        (Field::new(0x26b, 5), 9),               // log_bf_reg_size
        (Field::new(0x261, 1), 1),               // driver_version
        (Field::new(0x290, 16), MAX_SEND_WQE),
        (Field::new(0x2b0, 16), MAX_RECEIVE_WQE),
        (Field::new(0x323, 5), 16), // log_max_transport_domain
        (Field::new(0x32b, 5), pools::LOG_MAX_PDS),
        (Field::new(0x33b, 5), pools::LOG_MAX_XRCDS),
        (Field::new(0x383, 5), 15), // log_max_rmp
        (Field::new(0x4c0, 32), DEVICE_FREQUENCY_KHZ / 1000),
        (Field::new(0x4e0, 32), DEVICE_FREQUENCY_KHZ),
        (Field::new(0x520, 32), 1), // num_of_uars_per_page
        (Field::new(0x20, 1), 1),   // hca_cap_2
        (Field::new(0x5f0, 1), 1),  // tag_matching
        (Field::new(0x5f1, 1), 1),  // rndv_offload_rc
        (Field::new(0x5f3, 5), log(attr.max_num_tags)), // log_tag_matching_list_sz
        (Field::new(0x5fb, 5), log(attr.max_srq - 1)), // log_max_xrq
        (Field::new(0x5bd, 1), 1),  // cqe_128_always: entries of 64 bytes padded to 128
        (Field::new(0x30, 16), OWN_DEVICE),
        (Field::new(0xe8, 1), 1),  // relaxed_ordering_write
        (Field::new(0x32a, 1), 1), // relaxed_ordering_read
        (Field::new(0x5b2, 1), 1), // crossing_vhca_mkey
        (Field::new(0x752, 1), u64::from(attr.data_direct)),
    ]
}

/// Memory on the device (`device_mem_cap`). Which lengths of access its operations have the
/// kernel's headers do not say; its users look at the bytes at 4 and 6: a bit for each power of
/// two.
fn device_memory() -> [(Field, u64); 9] {
    const SINGLE_BYTES: u64 = 1;
    [
        (Field::new(0x0, 1), 1),             // memic
        (Field::new(0x20, 8), SINGLE_BYTES), // increment
        (Field::new(0x2b, 5), memic::LOG_GRANULE),
        (Field::new(0x30, 8), SINGLE_BYTES), // test and set
        (Field::new(0x38, 8), memic::LOG_MAX_ALIGNMENT),
        (Field::new(0x40, 64), memic::WINDOWS.start),
        (Field::new(0x80, 32), memic::LEN), // memic_bar_size
        (Field::new(0xa0, 32), memic::LEN), // max_memic_size
        (Field::new(0x200, 32), memic::ALL_OPERATIONS),
    ]
}

/// On-demand paging (`odp_cap`): of either scheme what each service can have in such memory, and
/// whether events of page faults name the memory (the newer scheme) or the request.
const SCHEMES: [usize; 2] = [0, 0x200];
const PREFETCHES: Field = Field::new(0x45, 1);
const BY_MEMORY: Field = Field::new(0x600, 1);
/// Places of RC, UD and XRC within a scheme.
const RC: Field = Field::new(0x80, 6);
const UD: Field = Field::new(0xc0, 6);
const XRC: Field = Field::new(0xe0, 6);
/// Send, receive, write, read, atomic, receive from a shared queue.
const ALL_OPERATIONS: u64 = 0b11_1111;
const SENDS: u64 = 0b10_0000;

/// The group of on-demand paging: what the older scheme can do is in force at first.
fn odp() -> Vec<u8> {
    let mut group = vec![0; GROUP_LEN];
    for scheme in SCHEMES {
        RC.at(scheme).set(&mut group, ALL_OPERATIONS);
        UD.at(scheme).set(&mut group, SENDS);
        XRC.at(scheme).set(&mut group, ALL_OPERATIONS);
    }
    PREFETCHES.at(SCHEMES[1]).set(&mut group, 1);
    group
}

fn with_memory_scheme() -> Vec<u8> {
    let mut group = odp();
    BY_MEMORY.set(&mut group, 1);
    group
}

/// What `SET_HCA_CAP` may change; the rest stays what the device can do.
const SETTABLE: [Field; 2] = [
    Field::new(0x190, 16), // pkey_table_size: 0 is 128 entries, the least
    Field::new(0x490, 16), // log_uar_page_sz
];

/// A group: what is in force, and the most that can be.
struct Group {
    current: Vec<u8>,
    max: Vec<u8>,
}

impl Group {
    fn of(fields: impl IntoIterator<Item = (Field, u64)>) -> Group {
        let mut max = vec![0; GROUP_LEN];
        fields.into_iter().for_each(|(field, value)| field.set(&mut max, value));
        Group { current: max.clone(), max }
    }
}

/// All groups.
pub(crate) struct Caps {
    general: Group,
    odp: Group,
    atomic: Group,
    debug: Group,
    device_memory: Group,
    general_2: Group,
    /// What a device with an Ethernet port has: offloads, RoCE, flow tables.
    ethernet: Option<[Group; 3]>,
}

impl Caps {
    pub(crate) fn new(attr: &DeviceAttr, ethernet: bool) -> Caps {
        let besides = if ethernet { ethernet_caps::general() } else { Vec::new() };
        let groups =
            || [ethernet_caps::ethernet(), ethernet_caps::roce(), ethernet_caps::flow_tables()];
        Caps {
            ethernet: ethernet.then(|| groups().map(Group::of)),
            general: Group::of(general(attr).into_iter().chain(besides)),
            odp: Group { current: odp(), max: with_memory_scheme() },
            atomic: Group::of([
                (ATOMIC_8B_MODE_1, 1),
                (ATOMIC_OPERATIONS, ATOMIC_SWAP_AND_ADD),
                (ATOMIC_SIZE_QP, 8),
            ]),
            debug: Group::of([(RESOURCE_DUMP, 1)]),
            device_memory: Group::of(device_memory()),
            general_2: Group::of([
                (QUERY_VUID, u64::from(!attr.vuid.is_empty())),
                (WIDE_PAGE_SIZES, 1),
                (LOG_QP_NUMBERS, LOG_SET_ASIDE),
                (LOG_MAX_PART, 48),
            ]),
        }
    }

    /// What `QUERY_HCA_CAP` answers: `op_mod` is the group and, in its lowest bit, whether the
    /// current values are meant.
    pub(crate) fn query(&self, op_mod: u16) -> Result<Vec<u8>, Status> {
        let group = match op_mod >> 1 {
            GENERAL => &self.general,
            ODP => &self.odp,
            ATOMIC => &self.atomic,
            DEBUG => &self.debug,
            DEVICE_MEMORY => &self.device_memory,
            GENERAL_2 => &self.general_2,
            other => self.ethernet_group(other).ok_or(Status::BadParameter)?,
        };
        let mut answer = if op_mod & 1 == 1 { group.current.clone() } else { group.max.clone() };
        answer.resize(LEN, 0);
        Ok(answer)
    }

    /// What user contexts may be granted.
    pub(crate) fn of_users(&self) -> u64 {
        OF_USERS.get(&self.general.current)
    }

    /// Whether events of page faults name the memory.
    pub(crate) fn faults_by_memory(&self) -> bool {
        BY_MEMORY.is_set(&self.odp.current)
    }

    fn ethernet_group(&self, group: u16) -> Option<&Group> {
        let [offloads, roce, flow_tables] = self.ethernet.as_ref()?;
        match group {
            ETHERNET => Some(offloads),
            ROCE => Some(roce),
            FLOW_TABLES => Some(flow_tables),
            _ => None,
        }
    }

    /// `SET_HCA_CAP`: a driver sends the whole general group with its wishes in it, and only the
    /// one field that it wants of the atomic group, so what is 0 there is not taken over.
    pub(crate) fn set(&mut self, request: &SetHcaCap) -> Result<(), Status> {
        let wanted = &request.capability;
        match request.op_mod >> 1 {
            GENERAL => {
                for field in SETTABLE {
                    field.set(&mut self.general.current, wanted.get(field));
                }
                Ok(())
            }
            ODP => {
                BY_MEMORY.set(&mut self.odp.current, wanted.get(BY_MEMORY));
                Ok(())
            }
            ATOMIC if wanted.get(ATOMIC_8B_MODE) == HOST_ENDIANNESS => {
                ATOMIC_8B_MODE.set(&mut self.atomic.current, HOST_ENDIANNESS);
                Ok(())
            }
            _ => Err(Status::BadParameter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(caps: &mut Caps, group: u16, wanted: &[u8]) -> Result<(), Status> {
        caps.set(&SetHcaCap { op_mod: group << 1, capability: wanted.into() })
    }

    #[test]
    fn setting_the_atomic_mode_keeps_what_the_device_can_do() {
        let mut caps = Caps::new(&DeviceAttr::new("mlx5", 1), false);
        let mut wanted = vec![0; LEN];
        ATOMIC_8B_MODE.set(&mut wanted, HOST_ENDIANNESS);
        set(&mut caps, ATOMIC, &wanted).unwrap();
        let now = caps.query(ATOMIC << 1 | 1).unwrap();
        assert_eq!(ATOMIC_OPERATIONS.get(&now), 3);
        assert_eq!(ATOMIC_8B_MODE.get(&now), 1);
        assert_eq!(ATOMIC_8B_MODE.get(&caps.query(ATOMIC << 1).unwrap()), 0);
    }

    #[test]
    fn nobody_grants_himself_a_capability() {
        let mut caps = Caps::new(&DeviceAttr::new("mlx5", 1), false);
        let before = caps.query(GENERAL << 1 | 1).unwrap();
        set(&mut caps, GENERAL, &[0xff; LEN]).unwrap();
        let after = caps.query(GENERAL << 1 | 1).unwrap();
        let roce = Field::new(0x21d, 1);
        assert_eq!((roce.get(&before), roce.get(&after)), (0, 0));
        assert!(caps.query(0x7fff << 1).is_err());
    }
}
