//! The virtual HCA: capabilities, PD, MKEY, CQ, SRQ, QP, AH, the transport and its progress.
//!
//! Work requests go in as values, completions and events come out as values; no C struct is known here, and
//! memory is seen only through MKEYs over a [`umem::DmaSpace`]. Nothing is global: a process may hold several
//! devices.
#![forbid(unsafe_code)]

mod advice;
mod ah;
mod batches;
mod caps;
mod cq;
mod data_direct;
pub mod device;
pub mod directory;
mod event;
mod failure;
mod flow_counters;
mod gsi;
pub mod identity;
mod indirect;
mod key_space;
mod lan;
mod management;
mod membership;
mod mkey_context;
mod mr;
pub mod multicast;
mod mw;
mod pd;
mod port;
mod progress;
mod qp;
mod qp_table;
mod raw;
mod rss;
mod srq;
pub mod steering;
pub mod subnet;
mod timers;
mod turn;
mod wq;
mod xrc;

pub use advice::AdviceError;
pub use caps::{DeviceAttr, GidEntry, PortAttr};
pub use cq::Cq;
pub use data_direct::control_id;
pub use device::AddressHandle;
pub use device::{Device, DeviceConfig, Network, OpenError};
pub use event::{AsyncEvent, CompletionSink, CqNotify, EventSink, EventSource};
pub use flow_counters::{BoundCounters, FlowCount, FlowCounters};
pub use gsi::{GsiSink, MadPath, ManagementInterface};
pub use indirect::{IndirectKey, MAX_KEY_ENTRIES};
pub use key_space::{Below, KeyPart, KeyParts, KeySpace, parts_reached};
pub use management::{ManagementDatagram, ManagementSink};
pub use membership::{MAX_MEMBERSHIPS, Membership, SubnetPort};
pub use mkey_context::{AccessMode, MkeyContext, MkeyRefused, NO_QP};
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{Qp, QpInit};
pub use raw::Flow;
pub use rss::{HASH_KEY_LEN, HashFields, IndTable, MAX_LOG_TABLE, MAX_TABLES, Rss, RxHash};
pub use srq::{Srq, SrqAttr, SrqKind, XrcSrq};
pub use transport;
pub use transport::keys::{self, BadSignature, BindError, ConfigureError, SignatureSink, Signed};
pub use transport::queues::slots::{QueueMemory, SLOT_ALIGN};
pub use transport::queues::tags::{TagOp, TagWr, TmCap};
pub use transport::signature::{
    BlockSignature, Escape, GuardKind, Signature, SignatureDomain, SignatureError, SignatureFault,
    T10Dif, guard,
};
pub use transport::values::*;
pub use transport::{Count, Counter, CounterSet, Error, Lent, Result, Shelf, sabotage};
pub use wire::mad::MAD_LEN;
pub use wq::{MAX_WQS, Wq, WqInit, WqState};
pub use xrc::{Inode, Xrcd, XrcdInit};
