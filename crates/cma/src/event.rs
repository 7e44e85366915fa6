//! Events on their way to the program: values that become `struct rdma_ucm_event_resp`.

use crate::id::Key;

/// Kind of an event (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The destination has an address here.
    AddrResolved = 0,
    /// It has none.
    AddrError = 1,
    /// There is a path.
    RouteResolved = 2,
    /// There is none.
    RouteError = 3,
    /// A peer wants a connection.
    ConnectRequest = 4,
    /// The peer accepted; the program shall go on.
    ConnectResponse = 5,
    /// A connection could not be made.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer does not want.
    Rejected = 8,
    /// Connected.
    Established = 9,
    /// The connection ended.
    Disconnected = 10,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// It could not be.
    MulticastError = 13,
    /// The queue pair may be used again.
    TimewaitExit = 15,
    /// The program's own.
    User = 18,
    /// librdmacm's own.
    Internal = 19,
}

/// What a connected peer said (`struct rdma_ucm_conn_param`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnParam {
    /// Queue pair number.
    pub qp_num: u32,
    /// Queue key, for datagrams between InfiniBand addresses.
    pub qkey: u32,
    /// Private data, 256 bytes at most.
    pub private_data: Vec<u8>,
    /// Whether the queue pair receives from a shared queue.
    pub srq: bool,
    /// RDMA READs and atomics that may come in at once.
    pub responder_resources: u8,
    /// RDMA READs and atomics that may go out at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries, 0 to 7.
    pub retry_count: u8,
    /// Retries when the receiver is not ready, 0 to 7.
    pub rnr_retry_count: u8,
}

/// An address vector (`struct ib_uverbs_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// GID of the destination.
    pub dgid: [u8; 16],
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Flow label of the packets' GRH.
    pub flow_label: u32,
    /// Hop limit of the packets' GRH.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// LID, which only multicast groups have here.
    pub dlid: u16,
}

/// Where datagrams go (`struct rdma_ucm_ud_param`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DatagramParam {
    /// Queue pair number.
    pub qp_num: u32,
    /// Queue key.
    pub qkey: u32,
    /// Address.
    pub ah: AddressVector,
    /// Private data, 256 bytes at most.
    pub private_data: Vec<u8>,
}

/// What comes with an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// Parameters of a connected service.
    Conn(ConnParam),
    /// Parameters of a datagram service.
    Datagram(Box<DatagramParam>),
    /// What the program gave its own event.
    Argument(u64),
}

/// Enhanced connection establishment (IBA 1.4, A19): options of one vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// Vendor.
    pub vendor_id: u32,
    /// Its options.
    pub attr_mod: u32,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Why: 0, a negative errno, or a reason for a rejection.
    pub status: i32,
    /// What comes with it.
    pub param: Param,
    /// Options of the peer's.
    pub ece: Ece,
    /// The id it is reported for; of a request, the listener.
    pub(crate) id: Key,
    /// The connection that was asked for.
    pub(crate) request: Option<Key>,
    /// The multicast membership.
    pub(crate) membership: Option<u32>,
}

/// An event as it is delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// The program's number for the id or the membership.
    pub uid: u64,
    /// Our number for it.
    pub handle: u32,
    /// What happened.
    pub event: Event,
}
