//! Receive steering: flow tables, their groups and entries (PRM "Flow Table"; `flow_table_context`, `fte_match_param`,
//! `flow_context`).
//!
//! A table has groups, each a mask over the outer headers and a range of indices; an entry has values under its group's mask
//! and says where a frame goes: to TIRs, to another table, or nowhere. A frame begins at the root table; of the entries
//! that match, the one with the least index counts. Criteria other than the outer headers are refused, as their capabilities
//! are 0.

use super::criteria::{MATCH_LEN, Match, image, matches};
use super::flow_counter::{FlowCounters, Traffic};
use crate::bits::{Field, be32};
use crate::budget::{Budget, Charge};
use crate::opcode::{Answer, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::frame::Frame;

/// Receive tables, the only ones.
const NIC_RECEIVE: u64 = 0;
const TYPE: Field = Field::new(0x80, 8);
const TABLE: Field = Field::new(0xa8, 24);
const CONTEXT_BIT: usize = 0xc0;
const MISS_ACTION: Field = Field::new(0x4, 4).at(CONTEXT_BIT);
const MISS_TABLE: Field = Field::new(0x28, 24).at(CONTEXT_BIT);
const MODIFY_SELECT: Field = Field::new(0x70, 16);
const MODIFY_MISS_TABLE: u64 = 1;
const TO_TABLE: u64 = 1;

const FIRST_INDEX: Field = Field::new(0xe0, 32);
const LAST_INDEX: Field = Field::new(0x120, 32);
const CRITERIA: Field = Field::new(0x1f8, 8);
const OUTER_HEADERS: u64 = 1;
/// `match_criteria` in the command that makes a group.
const MASK: usize = 0x200 / 8;

const INDEX: Field = Field::new(0x100, 32);
/// `flow_context` in the command that sets an entry.
const ENTRY_BIT: usize = 0x200;
const ENTRY_GROUP: Field = Field::new(0x20, 32).at(ENTRY_BIT);
const TAG: Field = Field::new(0x48, 24).at(ENTRY_BIT);
const ACTION: Field = Field::new(0x70, 16).at(ENTRY_BIT);
const DESTINATIONS: Field = Field::new(0x88, 24).at(ENTRY_BIT);
const COUNTERS: Field = Field::new(0xa8, 24).at(ENTRY_BIT);
const VALUE: usize = (ENTRY_BIT + 0x200) / 8;
const LIST: usize = (ENTRY_BIT + 0x1800) / 8;
/// Which parts of an entry that is there are meant.
const MODIFIED: Field = Field::new(0xd8, 8);
const MODIFY_ACTION: u64 = 1;
const MODIFY_TAG: u64 = 2;
const MODIFY_DESTINATIONS: u64 = 4;
const MODIFY_COUNTERS: u64 = 8;
const NEW: u16 = 0;
const CHANGED: u16 = 1;
const ALLOW: u64 = 1;
const DROP: u64 = 2;
const FORWARD: u64 = 4;
const COUNT: u64 = 8;
const DESTINATION_TYPE: Field = Field::new(0, 8);
const DESTINATION_ID: Field = Field::new(8, 24);
const DESTINATION_TABLE: u64 = 1;
const DESTINATION_TIR: u64 = 2;
/// Of one entry.
const MAX_DESTINATIONS: usize = 64;
/// Of one entry, as a logarithm.
pub(super) const LOG_MAX_COUNTERS: u64 = 4;
/// Bytes of a destination in a command, or of a counter's number.
const LISTED: usize = 8;
/// Tables, groups of one, and entries of all: what a driver needs and some.
const MAX_TABLES: usize = 1 << 10;
const MAX_GROUPS: usize = 1 << 10;
const MAX_ENTRIES: usize = 1 << 16;
/// Tables on a frame's way.
pub(super) const MAX_DEPTH: usize = 128;

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
    action: u64,
    /// What completions say of the frame; 0 says nothing.
    tag: u32,
    /// With [`FORWARD`]; none drops the frame.
    destinations: Vec<Destination>,
    /// With [`COUNT`].
    counters: Vec<Arc<Traffic>>,
    _charge: Charge,
}

/// What a group takes, and an entry with whatever it lists.
const GROUP_SIZE: u64 = 512;
const ENTRY_SIZE: u64 = 2048;
/// Entries that a frame is compared with, whatever tables it is led through: one for each VLAN, and some.
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

fn receives(input: &[u8]) -> Result<(), Status> {
    if TYPE.get(input) == NIC_RECEIVE { Ok(()) } else { Err(Status::BadParameter) }
}

fn done() -> Answer {
    Ok(vec![0; 8])
}

fn numbered(number: u32) -> Answer {
    let mut answer = vec![0; 8];
    answer[..4].copy_from_slice(&(number & 0xff_ffff).to_be_bytes());
    Ok(answer)
}

fn criteria(input: &[u8], at: usize) -> Result<Match, Status> {
    let bytes = input.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.copied().ok_or(Status::BadInputLength)
}

impl Steering {
    fn table(&mut self, input: &[u8]) -> Result<&mut Table, Status> {
        receives(input)?;
        self.tables.get_mut(&TABLE.get32(input)).ok_or(Status::BadResource)
    }

    /// The table that a miss leads to.
    fn miss(&self, input: &[u8]) -> Result<Option<u32>, Status> {
        if MISS_ACTION.get(input) != TO_TABLE {
            return Ok(None);
        }
        let next = MISS_TABLE.get32(input);
        if self.tables.contains_key(&next) { Ok(Some(next)) } else { Err(Status::BadResource) }
    }

    /// `CREATE_FLOW_TABLE`.
    pub(super) fn create_table(&mut self, input: &[u8]) -> Answer {
        receives(input)?;
        let miss = self.miss(input)?;
        let number = (1..).find(|number| !self.tables.contains_key(number));
        let number = number.filter(|_| self.tables.len() < MAX_TABLES);
        let number = number.ok_or(Status::NoResources)?;
        self.tables.insert(number, Table { miss, ..Table::default() });
        numbered(number)
    }

    /// `MODIFY_FLOW_TABLE`: where a miss leads to.
    pub(super) fn modify_table(&mut self, input: &[u8]) -> Answer {
        let miss = self.miss(input)?;
        let select = MODIFY_SELECT.get(input);
        let table = self.table(input)?;
        if select & !MODIFY_MISS_TABLE != 0 {
            return Err(Status::BadParameter);
        }
        if select & MODIFY_MISS_TABLE != 0 {
            table.miss = miss;
        }
        done()
    }

    /// `DESTROY_FLOW_TABLE`. Frames that would go on there are dropped.
    pub(super) fn destroy_table(&mut self, input: &[u8]) -> Answer {
        receives(input)?;
        let number = TABLE.get32(input);
        self.tables.remove(&number).ok_or(Status::BadResource)?;
        self.root = self.root.filter(|root| *root != number);
        done()
    }

    /// `SET_FLOW_TABLE_ROOT`: `op_mod` 1 takes it away.
    pub(super) fn set_root(&mut self, op_mod: u16, input: &[u8]) -> Answer {
        receives(input)?;
        if op_mod == 0 {
            self.table(input)?;
        }
        self.root = (op_mod == 0).then(|| TABLE.get32(input));
        done()
    }

    /// `CREATE_FLOW_GROUP`.
    pub(super) fn create_group(&mut self, budget: &Arc<Budget>, input: &[u8]) -> Answer {
        let (first, last) = (FIRST_INDEX.get32(input), LAST_INDEX.get32(input));
        if CRITERIA.get(input) & !OUTER_HEADERS != 0 || first > last {
            return Err(Status::BadParameter);
        }
        let mask = match CRITERIA.get(input) {
            OUTER_HEADERS => criteria(input, MASK)?,
            _ => [0; MATCH_LEN],
        };
        let table = self.table(input)?;
        let apart = table.groups.values().all(|group| last < group.first || group.last < first);
        let number = (1..).find(|number| !table.groups.contains_key(number));
        let number = number.filter(|_| table.groups.len() < MAX_GROUPS && apart);
        let number = number.ok_or(Status::NoResources)?;
        let _charge = budget.charge(GROUP_SIZE)?;
        table.groups.insert(number, Group { first, last, mask, _charge });
        numbered(number)
    }

    /// `DESTROY_FLOW_GROUP`, which its entries go with.
    pub(super) fn destroy_group(&mut self, input: &[u8]) -> Answer {
        const DESTROYED: Field = Field::new(0xc0, 32);
        let number = DESTROYED.get32(input);
        let table = self.table(input)?;
        table.groups.remove(&number).ok_or(Status::BadResource)?;
        table.entries.retain(|_, entry| entry.group != number);
        done()
    }

    /// `SET_FLOW_TABLE_ENTRY`: a new entry, or with `op_mod` 1 other parts of one that is there.
    pub(super) fn set_entry(&mut self, budget: &Arc<Budget>, op_mod: u16, input: &[u8]) -> Answer {
        let wanted = Entry {
            group: ENTRY_GROUP.get32(input),
            value: criteria(input, VALUE)?,
            action: ACTION.get(input),
            tag: TAG.get32(input),
            destinations: destinations(input)?,
            counters: self.counters_of(input)?,
            _charge: budget.charge(ENTRY_SIZE)?,
        };
        if wanted.action & !(ALLOW | DROP | FORWARD | COUNT) != 0 {
            return Err(Status::BadParameter);
        }
        let index = INDEX.get32(input);
        let full = self.tables.values().map(|table| table.entries.len()).sum::<usize>();
        let table = self.table(input)?;
        let group = table.groups.get(&wanted.group).ok_or(Status::BadResource)?;
        if !(group.first..=group.last).contains(&index) {
            return Err(Status::BadIndex);
        }
        match op_mod {
            NEW if full >= MAX_ENTRIES && !table.entries.contains_key(&index) => {
                return Err(Status::NoResources);
            }
            NEW => drop(table.entries.insert(index, wanted)),
            CHANGED => {
                let known = table.entries.get_mut(&index).ok_or(Status::BadIndex)?;
                known.change(MODIFIED.get(input), wanted)?;
            }
            _ => return Err(Status::BadParameter),
        }
        done()
    }

    /// `DELETE_FLOW_TABLE_ENTRY`.
    pub(super) fn delete_entry(&mut self, input: &[u8]) -> Answer {
        let table = self.table(input)?;
        table.entries.remove(&INDEX.get32(input)).ok_or(Status::BadIndex)?;
        done()
    }

    /// The counters that a command lists, behind its destinations.
    fn counters_of(&self, input: &[u8]) -> Result<Vec<Arc<Traffic>>, Status> {
        let count = COUNTERS.get(input) as usize;
        if count > 1 << LOG_MAX_COUNTERS {
            return Err(Status::Limits);
        }
        let from = LIST + DESTINATIONS.get(input) as usize * LISTED;
        let list = input.get(from..).unwrap_or_default();
        let list = list.get(..count * LISTED).ok_or(Status::BadInputLength)?;
        list.chunks_exact(LISTED).map(|listed| self.counters.get(be32(listed, 0))).collect()
    }

    /// Calls `each` with every place that a frame of so many `bytes` goes to.
    pub(super) fn steer(&self, frame: &Frame, bytes: usize, each: &mut dyn FnMut(Steered)) {
        if let Some(root) = self.root {
            let mut way =
                Way { image: image(frame), bytes, left: MAX_COMPARED, copies: MAX_COPIES, each };
            self.walk(&mut way, root, 0, MAX_DEPTH);
        }
    }

    fn walk(&self, way: &mut Way<'_>, table: u32, tag: u32, depth: usize) {
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
struct Way<'a> {
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
    fn change(&mut self, parts: u64, wanted: Entry) -> Result<(), Status> {
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

/// Those that a command lists.
fn destinations(input: &[u8]) -> Result<Vec<Destination>, Status> {
    let count = DESTINATIONS.get(input) as usize;
    if count > MAX_DESTINATIONS {
        return Err(Status::Limits);
    }
    let list = input.get(LIST..).unwrap_or_default();
    let list = list.get(..count * LISTED).ok_or(Status::BadInputLength)?;
    list.chunks_exact(LISTED).map(destination).collect()
}

fn destination(bytes: &[u8]) -> Result<Destination, Status> {
    let number = DESTINATION_ID.get32(bytes);
    match DESTINATION_TYPE.get(bytes) {
        DESTINATION_TABLE => Ok(Destination::Table(number)),
        DESTINATION_TIR => Ok(Destination::Tir(number)),
        _ => Err(Status::BadParameter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::frame::Mac;

    const BROADCAST: Mac = [0xff; 6];

    fn budget() -> Arc<Budget> {
        Budget::new(1 << 20)
    }

    fn number(answer: Answer) -> u32 {
        u32::from_be_bytes(*answer.unwrap().first_chunk().unwrap())
    }

    fn input(fields: &[(Field, u64)]) -> Vec<u8> {
        let mut input = vec![0; LIST + 64];
        fields.iter().for_each(|(field, value)| field.set(&mut input, *value));
        input
    }

    fn frame(dst: Mac) -> Frame {
        Frame { dst, src: [2; 6], vlan: None, ether_type: 0x806, ip: None, ports: None }
    }

    fn tirs(steering: &Steering, dst: Mac) -> Vec<u32> {
        let mut found = Vec::new();
        steering.steer(&frame(dst), 60, &mut |steered| found.push(steered.tir));
        found
    }

    /// A table with one group of 8 over the destination.
    fn by_destination(steering: &mut Steering) -> (u32, u32) {
        let table = number(steering.create_table(&input(&[])));
        let mut group = input(&[(TABLE, table.into()), (LAST_INDEX, 7), (CRITERIA, 1)]);
        Field::new(MASK * 8 + 0x40, 48).set(&mut group, u64::MAX);
        (table, number(steering.create_group(&budget(), &group)))
    }

    fn entry(table: u32, group: u32, index: u64, dst: Mac, to: (u64, u32)) -> Vec<u8> {
        let mut input = input(&[
            (TABLE, table.into()),
            (ENTRY_GROUP, group.into()),
            (INDEX, index),
            (ACTION, FORWARD),
            (DESTINATIONS, 1),
        ]);
        input[VALUE + 8..VALUE + 14].copy_from_slice(&dst);
        input[LIST..LIST + 4].copy_from_slice(&((to.0 as u32) << 24 | to.1).to_be_bytes());
        input
    }

    #[test]
    fn frames_find_their_tir_through_tables() {
        let mut steering = Steering::default();
        let (first, group) = by_destination(&mut steering);
        let (second, deeper) = by_destination(&mut steering);
        let to = |steering: &mut Steering, table, group, index, dst, to| {
            steering.set_entry(&budget(), NEW, &entry(table, group, index, dst, to)).map(drop)
        };
        to(&mut steering, first, group, 0, BROADCAST, (DESTINATION_TABLE, second)).unwrap();
        to(&mut steering, first, group, 1, [2; 6], (DESTINATION_TIR, 7)).unwrap();
        to(&mut steering, second, deeper, 3, BROADCAST, (DESTINATION_TIR, 9)).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [0; 0], "no root yet");
        steering.set_root(0, &input(&[(TABLE, first.into())])).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [9]);
        assert_eq!(tirs(&steering, [2; 6]), [7]);
        assert_eq!(tirs(&steering, [4; 6]), [0; 0]);
        let miss = [
            (TABLE, first.into()),
            (MODIFY_SELECT, MODIFY_MISS_TABLE),
            (MISS_ACTION, TO_TABLE),
            (MISS_TABLE, second.into()),
        ];
        steering.modify_table(&input(&miss)).unwrap();
        let delete = input(&[(TABLE, first.into()), (INDEX, 0)]);
        steering.delete_entry(&delete).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [9], "by the miss");
        assert_eq!(to(&mut steering, first, group, 8, BROADCAST, (2, 1)), Err(Status::BadIndex));
        assert_eq!(to(&mut steering, first, 99, 1, BROADCAST, (2, 1)), Err(Status::BadResource));
        assert_eq!(
            to(&mut steering, first, group, 1, BROADCAST, (0, 1)),
            Err(Status::BadParameter)
        );
    }

    #[test]
    fn parts_of_an_entry_change() {
        let mut steering = Steering::default();
        let (table, group) = by_destination(&mut steering);
        let mut input = entry(table, group, 0, BROADCAST, (DESTINATION_TIR, 7));
        assert_eq!(
            steering.set_entry(&budget(), CHANGED, &input),
            Err(Status::BadIndex),
            "it is not there"
        );
        steering.set_entry(&budget(), NEW, &input).unwrap();
        steering.set_root(0, &input).unwrap();
        let found = |steering: &Steering| {
            let mut found = Vec::new();
            steering.steer(&frame(BROADCAST), 60, &mut |steered| found.push(steered));
            found
        };
        TAG.set(&mut input, 0x1234);
        ACTION.set(&mut input, DROP);
        input[LIST + 3] = 8;
        MODIFIED.set(&mut input, MODIFY_TAG);
        steering.set_entry(&budget(), CHANGED, &input).unwrap();
        assert_eq!(found(&steering), [Steered { tir: 7, tag: 0x1234 }]);
        MODIFIED.set(&mut input, MODIFY_DESTINATIONS);
        steering.set_entry(&budget(), CHANGED, &input).unwrap();
        assert_eq!(found(&steering), [Steered { tir: 8, tag: 0x1234 }]);
        MODIFIED.set(&mut input, MODIFY_ACTION);
        steering.set_entry(&budget(), CHANGED, &input).unwrap();
        assert_eq!(found(&steering), []);
        MODIFIED.set(&mut input, 16);
        assert_eq!(steering.set_entry(&budget(), CHANGED, &input), Err(Status::BadParameter));
        assert_eq!(steering.set_entry(&budget(), 2, &input), Err(Status::BadParameter));
    }

    #[test]
    fn entries_count_what_they_take_and_what_they_drop() {
        let mut steering = Steering::default();
        let (table, group) = by_destination(&mut steering);
        let mut input = entry(table, group, 0, BROADCAST, (DESTINATION_TIR, 7));
        COUNTERS.set(&mut input, 1);
        input[LIST + LISTED + 3] = 1;
        ACTION.set(&mut input, FORWARD | COUNT);
        assert_eq!(
            steering.set_entry(&budget(), NEW, &input),
            Err(Status::BadResource),
            "no such counter"
        );
        steering.counters.alloc(&[0; 16]).unwrap();
        steering.set_entry(&budget(), NEW, &input).unwrap();
        steering.set_root(0, &input).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [7]);
        DESTINATIONS.set(&mut input, 0);
        input.copy_within(LIST + LISTED..LIST + 2 * LISTED, LIST);
        ACTION.set(&mut input, DROP | COUNT);
        steering.set_entry(&budget(), NEW, &input).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [0; 0]);
        assert_eq!(tirs(&steering, [2; 6]), [0; 0], "no entry is for it");
        let mut one = vec![0; 32];
        one[31] = 1;
        let mut counted = vec![0; 8];
        counted.extend([2u64, 120].into_iter().flat_map(u64::to_be_bytes));
        assert_eq!(steering.counters.query(&one).unwrap(), counted);
        COUNTERS.set(&mut input, 17);
        assert_eq!(steering.set_entry(&budget(), NEW, &input), Err(Status::Limits));
    }

    #[test]
    fn tables_in_a_circle_end() {
        let mut steering = Steering::default();
        let (table, group) = by_destination(&mut steering);
        let mut input = entry(table, group, 0, BROADCAST, (DESTINATION_TABLE, table));
        DESTINATIONS.set(&mut input, 2);
        input.copy_within(LIST..LIST + 8, LIST + 8);
        steering.set_entry(&budget(), NEW, &input).unwrap();
        steering.set_root(0, &input).unwrap();
        assert_eq!(tirs(&steering, BROADCAST), [0; 0]);
    }
}
