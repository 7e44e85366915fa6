//! The virtual HCA: protection domains, memory keys, completion queues, queue pairs and the rest of
//! what the verbs name, over the transport and what drives it.
//!
//! Work requests go in as values, completions and events come out as values; no C struct is known
//! here, and memory is seen only through memory keys over a [`umem::DmaSpace`]. It promises that
//! nothing is global, so that a process may hold several devices, and that it is safe Rust whatever
//! peers send and programs ask.
//!
//! Start at [`Device::open`], on whose device [`Pd`], [`Mr`], [`Cq`] and [`Qp`] are made. Inside,
//! `adapter` is what everything stands on: identity, port, link, keys, the shared directory.
//! `memory` and `objects` are what programs make on it, `frames` is Ethernet beside the transport,
//! `fabric` is what its port is on, `device` opens it all and drives it. Each knows those before
//! it only.
#![forbid(unsafe_code)]

mod adapter;
mod device;
mod fabric;
mod frames;
mod memory;
mod objects;
pub mod sabotage;

/// What other processes write, for fuzzing and the system's tests; not part of the API.
#[doc(hidden)]
pub use adapter::fuzzed;

pub use adapter::caps::{DeviceAttr, GidEntry, PortAttr};
pub use adapter::event::{AsyncEvent, CompletionSink, CqNotify, EventSink, EventSource, Object};
pub use adapter::management::{ManagementDatagram, ManagementInterface, ManagementSink};
pub use adapter::membership::{MAX_MEMBERSHIPS, Membership};
pub use adapter::tracer::name_neighbours_while;
pub use adapter::{control_id, directory, identity};
pub use device::{Device, DeviceConfig, Network, OpenError, Place, Waited, stop_waiting_here};
pub use fabric::gsi::{GeneralServices, GsiSink, MadPath};
pub use fabric::lan::EthernetPort;
pub use fabric::management::Management;
pub use fabric::membership::SubnetPort;
pub use fabric::multicast::Multicast;
pub use fabric::{Fabric, multicast, subnet};
pub use frames::flow_counters::{BoundCounters, FlowCount, FlowCounters};
pub use frames::raw::{Flow, Frames};
pub use frames::steering;
pub use memory::advice::AdviceError;
pub use memory::data_direct::DataDirect;
pub use memory::indirect::{IndirectKey, MAX_KEY_ENTRIES};
pub use memory::key_space::{Below, KeyPart, KeyParts, KeySpace, parts_reached};
pub use memory::mr::Mr;
pub use memory::mw::Mw;
pub use memory::pd::Pd;
pub use objects::ah::AddressHandle;
pub use objects::cq::Cq;
pub use objects::qp::{Qp, QpInit};
pub use objects::rss::{
    HASH_KEY_LEN, HashFields, IndTable, MAX_LOG_TABLE, MAX_TABLES, Rss, RxHash,
};
pub use objects::srq::{Srq, SrqAttr, SrqKind, XrcSrq};
pub use objects::wq::{MAX_WQS, Wq, WqInit, WqState};
pub use objects::xrc::{Inode, Xrcd, XrcdInit};
pub use transport;
pub use transport::keys::{self, BadSignature, BindError, ConfigureError, SignatureSink, Signed};
pub use transport::queues::slots::{QueueMemory, SLOT_ALIGN};
pub use transport::queues::tags::{TagOp, TagWr, TmCap};
pub use transport::signature::{
    BlockSignature, Escape, GuardKind, Signature, SignatureDomain, SignatureError, SignatureFault,
    T10Dif, guard,
};
pub use transport::values::*;
pub use transport::{
    Count, Counter, CounterSet, Error, Lent, Result, Shelf, ShortPayload, ShortWr,
};
pub use wire::mad::MAD_LEN;
pub use wire::{DEFAULT_PKEY, SHORT_PAYLOAD};
