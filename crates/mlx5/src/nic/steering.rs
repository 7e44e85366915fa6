//! Receive steering: flow tables, their groups and entries (PRM "Flow Table"; `flow_table_context`,
//! `fte_match_param`, `flow_context`).
//!
//! A table has groups, each a mask over the outer headers and a range of indices; an entry has
//! values under its group's mask and says where a frame goes: to TIRs, to another table, or
//! nowhere. A frame begins at the root table; of the entries that match, the one with the least
//! index counts. Criteria other than the outer headers are refused, as their capabilities are 0.

use super::criteria::{Match, image, matches};
use super::flow_counter::{FlowCounters, Traffic};
use crate::layout::bits::{Field, be32};
use crate::layout::head::{Answer, Status, done, number};
use crate::machine::budget::{Budget, Charge};
use crate::request::steering::{
    CreateFlowGroup, CreateFlowTable, DeleteFlowTableEntry, DestroyFlowGroup, FlowTable, MATCH_LEN,
    Miss, ModifyFlowTable, SetFlowTableEntry, SetFlowTableRoot,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::frame::Frame;

/// Receive tables, the only ones.
const NIC_RECEIVE: u8 = 0;
/// The bit of `modify_field_select` for where a miss leads.
const MODIFY_MISS_TABLE: u16 = 1;
const TO_TABLE: u8 = 1;
/// The bit of `match_criteria_enable` for the outer headers.
const OUTER_HEADERS: u8 = 1;
/// Which parts of an entry that is there are meant.
const MODIFY_ACTION: u8 = 1;
const MODIFY_TAG: u8 = 2;
const MODIFY_DESTINATIONS: u8 = 4;
const MODIFY_COUNTERS: u8 = 8;
// Values of `op_mod`: the entry is new, or parts of one that is there change.
const NEW: u16 = 0;
const CHANGED: u16 = 1;
const ALLOW: u16 = 1;
const DROP: u16 = 2;
const FORWARD: u16 = 4;
const COUNT: u16 = 8;
const DESTINATION_TYPE: Field = Field::new(0, 8);
const DESTINATION_ID: Field = Field::new(8, 24);
const DESTINATION_TABLE: u64 = 1;
const DESTINATION_TIR: u64 = 2;
/// Destinations of one entry.
const MAX_DESTINATIONS: usize = 64;
/// Counters of one entry, as a logarithm.
pub(crate) const LOG_MAX_COUNTERS: u64 = 4;
/// Tables, groups of one, and entries of all: what a driver needs and some.
const MAX_TABLES: usize = 1 << 10;
const MAX_GROUPS: usize = 1 << 10;
const MAX_ENTRIES: usize = 1 << 16;
/// Tables on a frame's way.
pub(crate) const MAX_DEPTH: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Destination {
    Table(u32),
    Tir(u32),
}

struct Group {
    first: u32,
    last: u32,
    mask: Match,
    _charge: Charge,
}

struct Entry {
    group: u32,
    value: Match,
    action: u16,
    /// What completions say of the frame; 0 says nothing.
    tag: u32,
    /// Where an action with [`FORWARD`] sends a frame; an empty list drops it.
    destinations: Vec<Destination>,
    /// The counters that an action with [`COUNT`] counts in.
    counters: Vec<Arc<Traffic>>,
    _charge: Charge,
}

/// What a group takes, and an entry with whatever it lists.
const GROUP_SIZE: u64 = 512;
const ENTRY_SIZE: u64 = 2048;
/// Entries that a frame is compared with, whatever tables it is led through: one for each VLAN, and
/// some.
const MAX_COMPARED: usize = 1 << 14;
/// Places that a frame goes to, whatever tables it is led through.
const MAX_COPIES: usize = MAX_DESTINATIONS;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Steered {
    pub(super) tir: u32,
    /// The latest on its way.
    pub(super) tag: u32,
}

#[derive(Default)]
struct Table {
    miss: Option<u32>,
    groups: BTreeMap<u32, Group>,
    entries: BTreeMap<u32, Entry>,
}

/// All tables.
#[derive(Default)]
pub(super) struct Steering {
    root: Option<u32>,
    tables: BTreeMap<u32, Table>,
    pub(super) counters: FlowCounters,
}

fn receives(table: &FlowTable) -> Result<(), Status> {
    if table.table_type == NIC_RECEIVE { Ok(()) } else { Err(Status::BadParameter) }
}

impl Steering {
    fn table(&mut self, named: &FlowTable) -> Result<&mut Table, Status> {
        receives(named)?;
        self.tables.get_mut(&named.table_id).ok_or(Status::BadResource)
    }

    /// The table that a miss leads to.
    fn miss(&self, miss: &Miss) -> Result<Option<u32>, Status> {
        if miss.table_miss_action != TO_TABLE {
            return Ok(None);
        }
        let next = miss.table_miss_id;
        if self.tables.contains_key(&next) { Ok(Some(next)) } else { Err(Status::BadResource) }
    }

    /// `CREATE_FLOW_TABLE`.
    pub(super) fn create_table(&mut self, request: &CreateFlowTable) -> Answer {
        receives(&request.table)?;
        let miss = self.miss(&request.miss)?;
        let new = (1..).find(|number| !self.tables.contains_key(number));
        let new = new.filter(|_| self.tables.len() < MAX_TABLES).ok_or(Status::NoResources)?;
        self.tables.insert(new, Table { miss, ..Table::default() });
        number(new)
    }

    /// `MODIFY_FLOW_TABLE`: where a miss leads to.
    pub(super) fn modify_table(&mut self, request: &ModifyFlowTable) -> Answer {
        let miss = self.miss(&request.miss)?;
        let select = request.modify_field_select;
        let table = self.table(&request.table)?;
        if select & !MODIFY_MISS_TABLE != 0 {
            return Err(Status::BadParameter);
        }
        if select & MODIFY_MISS_TABLE != 0 {
            table.miss = miss;
        }
        done()
    }

    /// `DESTROY_FLOW_TABLE`. Frames that would go on there are dropped.
    pub(super) fn destroy_table(&mut self, request: &FlowTable) -> Answer {
        receives(request)?;
        let number = request.table_id;
        self.tables.remove(&number).ok_or(Status::BadResource)?;
        self.root = self.root.filter(|root| *root != number);
        done()
    }

    /// `SET_FLOW_TABLE_ROOT`: `op_mod` 1 takes it away.
    pub(super) fn set_root(&mut self, request: &SetFlowTableRoot) -> Answer {
        let table = &request.table;
        receives(table)?;
        if request.op_mod == 0 {
            self.table(table)?;
        }
        self.root = (request.op_mod == 0).then_some(table.table_id);
        done()
    }

    /// `CREATE_FLOW_GROUP`.
    pub(super) fn create_group(
        &mut self,
        budget: &Arc<Budget>,
        request: &CreateFlowGroup,
    ) -> Answer {
        let (first, last) = (request.start_flow_index, request.end_flow_index);
        if request.match_criteria_enable & !OUTER_HEADERS != 0 || first > last {
            return Err(Status::BadParameter);
        }
        let mask = match request.match_criteria_enable {
            OUTER_HEADERS => request.match_criteria.ok_or(Status::BadInputLength)?,
            _ => [0; MATCH_LEN],
        };
        let table = self.table(&request.table)?;
        let apart = table.groups.values().all(|group| last < group.first || group.last < first);
        let new = (1..).find(|number| !table.groups.contains_key(number));
        let new = new.filter(|_| table.groups.len() < MAX_GROUPS && apart);
        let new = new.ok_or(Status::NoResources)?;
        let _charge = budget.charge(GROUP_SIZE)?;
        table.groups.insert(new, Group { first, last, mask, _charge });
        number(new)
    }

    /// `DESTROY_FLOW_GROUP`, which its entries go with.
    pub(super) fn destroy_group(&mut self, request: &DestroyFlowGroup) -> Answer {
        let number = request.group_id;
        let table = self.table(&request.table)?;
        table.groups.remove(&number).ok_or(Status::BadResource)?;
        table.entries.retain(|_, entry| entry.group != number);
        done()
    }

    /// `SET_FLOW_TABLE_ENTRY`: a new entry, or with `op_mod` 1 other parts of one that is there.
    pub(super) fn set_entry(
        &mut self,
        budget: &Arc<Budget>,
        request: &SetFlowTableEntry,
    ) -> Answer {
        let wanted = Entry {
            group: request.group_id,
            value: request.match_value.ok_or(Status::BadInputLength)?,
            action: request.action,
            tag: request.flow_tag,
            destinations: destinations(request)?,
            counters: self.counters_of(request)?,
            _charge: budget.charge(ENTRY_SIZE)?,
        };
        if wanted.action & !(ALLOW | DROP | FORWARD | COUNT) != 0 {
            return Err(Status::BadParameter);
        }
        let index = request.flow_index;
        let full = self.tables.values().map(|table| table.entries.len()).sum::<usize>();
        let table = self.table(&request.table)?;
        let group = table.groups.get(&wanted.group).ok_or(Status::BadResource)?;
        if !(group.first..=group.last).contains(&index) {
            return Err(Status::BadIndex);
        }
        match request.op_mod {
            NEW if full >= MAX_ENTRIES && !table.entries.contains_key(&index) => {
                return Err(Status::NoResources);
            }
            NEW => drop(table.entries.insert(index, wanted)),
            CHANGED => {
                let known = table.entries.get_mut(&index).ok_or(Status::BadIndex)?;
                known.change(request.modify_enable_mask, wanted)?;
            }
            _ => return Err(Status::BadParameter),
        }
        done()
    }

    /// `DELETE_FLOW_TABLE_ENTRY`.
    pub(super) fn delete_entry(&mut self, request: &DeleteFlowTableEntry) -> Answer {
        let table = self.table(&request.table)?;
        table.entries.remove(&request.flow_index).ok_or(Status::BadIndex)?;
        done()
    }

    /// The counters that a command lists, behind its destinations.
    fn counters_of(&self, request: &SetFlowTableEntry) -> Result<Vec<Arc<Traffic>>, Status> {
        let count = request.flow_counter_list_size as usize;
        if count > 1 << LOG_MAX_COUNTERS {
            return Err(Status::Limits);
        }
        let list = request.list.get(request.destination_list_size as usize..);
        let list = list.unwrap_or_default().get(..count).ok_or(Status::BadInputLength)?;
        list.iter().map(|listed| self.counters.get(be32(listed, 0))).collect()
    }

    /// Calls `each` with every place that a frame of so many `bytes` goes to.
    pub(super) fn steer(&self, frame: &Frame, bytes: usize, each: &mut dyn FnMut(Steered)) {
        if let Some(root) = self.root {
            let mut way = Traversal {
                image: image(frame),
                bytes,
                left: MAX_COMPARED,
                copies: MAX_COPIES,
                each,
            };
            self.walk(&mut way, root, 0, MAX_DEPTH);
        }
    }

    fn walk(&self, way: &mut Traversal<'_>, table: u32, tag: u32, depth: usize) {
        let Some(table) = self.tables.get(&table).filter(|_| depth > 0) else { return };
        let found = table.entries.values().take(way.left).find(|entry| {
            way.left -= 1;
            let mask = table.groups.get(&entry.group).map(|group| &group.mask);
            mask.is_some_and(|mask| matches(&way.image, mask, &entry.value))
        });
        let Some(entry) = found else {
            if let Some(next) = table.miss.filter(|_| way.left > 0) {
                self.walk(way, next, tag, depth - 1);
            }
            return;
        };
        if entry.action & COUNT != 0 {
            entry.counters.iter().for_each(|counter| counter.add(way.bytes));
        }
        if entry.action & FORWARD == 0 {
            return;
        }
        let tag = if entry.tag == 0 { tag } else { entry.tag };
        // Only one way leads on, or a circle of tables could multiply a frame.
        let mut onward = true;
        for destination in &entry.destinations {
            match *destination {
                Destination::Tir(_) if way.copies == 0 => return,
                Destination::Tir(tir) => {
                    way.copies -= 1;
                    (way.each)(Steered { tir, tag });
                }
                Destination::Table(next) if std::mem::take(&mut onward) => {
                    self.walk(way, next, tag, depth - 1);
                }
                Destination::Table(_) => {}
            }
        }
    }
}

/// A frame on its way through the tables.
struct Traversal<'a> {
    image: Match,
    bytes: usize,
    /// Entries that it may still be compared with.
    left: usize,
    /// Places that it may still go to.
    copies: usize,
    each: &'a mut dyn FnMut(Steered),
}

impl Entry {
    /// Takes over the parts that are meant.
    fn change(&mut self, parts: u8, wanted: Entry) -> Result<(), Status> {
        let known = MODIFY_ACTION | MODIFY_TAG | MODIFY_DESTINATIONS | MODIFY_COUNTERS;
        if parts & !known != 0 {
            return Err(Status::BadParameter);
        }
        if parts & MODIFY_ACTION != 0 {
            self.action = wanted.action;
        }
        if parts & MODIFY_TAG != 0 {
            self.tag = wanted.tag;
        }
        if parts & MODIFY_DESTINATIONS != 0 {
            self.destinations = wanted.destinations;
        }
        if parts & MODIFY_COUNTERS != 0 {
            self.counters = wanted.counters;
        }
        Ok(())
    }
}

/// The destinations that a command lists.
fn destinations(request: &SetFlowTableEntry) -> Result<Vec<Destination>, Status> {
    let count = request.destination_list_size as usize;
    if count > MAX_DESTINATIONS {
        return Err(Status::Limits);
    }
    let list = request.list.get(..count).ok_or(Status::BadInputLength)?;
    list.iter().map(destination).collect()
}

fn destination(bytes: &[u8; 8]) -> Result<Destination, Status> {
    let number = DESTINATION_ID.get32(bytes);
    match DESTINATION_TYPE.get(bytes) {
        DESTINATION_TABLE => Ok(Destination::Table(number)),
        DESTINATION_TIR => Ok(Destination::Tir(number)),
        _ => Err(Status::BadParameter),
    }
}

#[cfg(test)]
mod tests;
