//! Tables of the kind that a network driver makes, and frames that are led through them.

use super::*;
use crate::request::steering::{AllocFlowCounter, QueryFlowCounter};
use wire::ethernet::Mac;

const BROADCAST: Mac = [0xff; 6];

fn budget() -> Arc<Budget> {
    Budget::new(1 << 20)
}

fn made(answer: Answer) -> u32 {
    u32::from_be_bytes(*answer.unwrap().first_chunk().unwrap())
}

fn table(table_id: u32) -> FlowTable {
    FlowTable { table_id, ..FlowTable::default() }
}

fn root(table_id: u32) -> SetFlowTableRoot {
    SetFlowTableRoot { op_mod: 0, table: table(table_id) }
}

fn frame(dst: Mac) -> Frame {
    Frame { dst, src: [2; 6], vlan: None, ether_type: 0x806, ip: None, ports: None }
}

fn tirs(steering: &Steering, dst: Mac) -> Vec<u32> {
    let mut found = Vec::new();
    steering.steer(&frame(dst), 60, &mut |steered| found.push(steered.tir));
    found
}

/// The criteria over the destination alone.
fn destination_is(dst: Mac) -> Match {
    let mut criteria = [0; MATCH_LEN];
    criteria[8..14].copy_from_slice(&dst);
    criteria
}

/// A table with one group of 8 over the destination.
fn by_destination(steering: &mut Steering) -> (u32, u32) {
    let number = made(steering.create_table(&CreateFlowTable::default()));
    let group = CreateFlowGroup {
        table: table(number),
        end_flow_index: 7,
        match_criteria_enable: OUTER_HEADERS,
        match_criteria: Some(destination_is([0xff; 6])),
        ..CreateFlowGroup::default()
    };
    (number, made(steering.create_group(&budget(), &group)))
}

fn listed(kind: u64, number: u32) -> [u8; 8] {
    let mut entry = [0; 8];
    DESTINATION_TYPE.set(&mut entry, kind);
    DESTINATION_ID.set(&mut entry, number.into());
    entry
}

fn entry(
    (table_id, group_id): (u32, u32),
    flow_index: u32,
    dst: Mac,
    (kind, number): (u64, u32),
) -> SetFlowTableEntry {
    SetFlowTableEntry {
        op_mod: NEW,
        table: table(table_id),
        flow_index,
        group_id,
        action: FORWARD,
        destination_list_size: 1,
        match_value: Some(destination_is(dst)),
        list: vec![listed(kind, number)],
        ..SetFlowTableEntry::default()
    }
}

#[test]
fn frames_find_their_tir_through_tables() {
    let mut steering = Steering::default();
    let first = by_destination(&mut steering);
    let second = by_destination(&mut steering);
    let to = |steering: &mut Steering, place, index, dst, to| {
        steering.set_entry(&budget(), &entry(place, index, dst, to)).map(drop)
    };
    to(&mut steering, first, 0, BROADCAST, (DESTINATION_TABLE, second.0)).unwrap();
    to(&mut steering, first, 1, [2; 6], (DESTINATION_TIR, 7)).unwrap();
    to(&mut steering, second, 3, BROADCAST, (DESTINATION_TIR, 9)).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [0; 0], "no root yet");
    steering.set_root(&root(first.0)).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [9]);
    assert_eq!(tirs(&steering, [2; 6]), [7]);
    assert_eq!(tirs(&steering, [4; 6]), [0; 0]);
    let miss = ModifyFlowTable {
        table: table(first.0),
        modify_field_select: MODIFY_MISS_TABLE,
        miss: Miss { table_miss_action: TO_TABLE, table_miss_id: second.0 },
    };
    steering.modify_table(&miss).unwrap();
    let delete = DeleteFlowTableEntry { table: table(first.0), flow_index: 0 };
    steering.delete_entry(&delete).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [9], "by the miss");
    assert_eq!(to(&mut steering, first, 8, BROADCAST, (2, 1)), Err(Status::BadIndex));
    let no_group = (first.0, 99);
    assert_eq!(to(&mut steering, no_group, 1, BROADCAST, (2, 1)), Err(Status::BadResource));
    assert_eq!(to(&mut steering, first, 1, BROADCAST, (0, 1)), Err(Status::BadParameter));
}

#[test]
fn parts_of_an_entry_change() {
    let mut steering = Steering::default();
    let place = by_destination(&mut steering);
    let mut request = entry(place, 0, BROADCAST, (DESTINATION_TIR, 7));
    request.op_mod = CHANGED;
    let absent = steering.set_entry(&budget(), &request);
    assert_eq!(absent, Err(Status::BadIndex), "it is not there");
    request.op_mod = NEW;
    steering.set_entry(&budget(), &request).unwrap();
    steering.set_root(&root(place.0)).unwrap();
    let found = |steering: &Steering| {
        let mut found = Vec::new();
        steering.steer(&frame(BROADCAST), 60, &mut |steered| found.push(steered));
        found
    };
    request.op_mod = CHANGED;
    request.flow_tag = 0x1234;
    request.action = DROP;
    request.list = vec![listed(DESTINATION_TIR, 8)];
    request.modify_enable_mask = MODIFY_TAG;
    steering.set_entry(&budget(), &request).unwrap();
    assert_eq!(found(&steering), [Steered { tir: 7, tag: 0x1234 }]);
    request.modify_enable_mask = MODIFY_DESTINATIONS;
    steering.set_entry(&budget(), &request).unwrap();
    assert_eq!(found(&steering), [Steered { tir: 8, tag: 0x1234 }]);
    request.modify_enable_mask = MODIFY_ACTION;
    steering.set_entry(&budget(), &request).unwrap();
    assert_eq!(found(&steering), []);
    request.modify_enable_mask = 16;
    assert_eq!(steering.set_entry(&budget(), &request), Err(Status::BadParameter));
    request.op_mod = 2;
    assert_eq!(steering.set_entry(&budget(), &request), Err(Status::BadParameter));
}

#[test]
fn entries_count_what_they_take_and_what_they_drop() {
    let counter = |number: u32| {
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&number.to_be_bytes());
        entry
    };
    let mut steering = Steering::default();
    let place = by_destination(&mut steering);
    let mut request = entry(place, 0, BROADCAST, (DESTINATION_TIR, 7));
    request.flow_counter_list_size = 1;
    request.list.push(counter(1));
    request.action = FORWARD | COUNT;
    let unknown = steering.set_entry(&budget(), &request);
    assert_eq!(unknown, Err(Status::BadResource), "no such counter");
    steering.counters.alloc(&AllocFlowCounter::default()).unwrap();
    steering.set_entry(&budget(), &request).unwrap();
    steering.set_root(&root(place.0)).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [7]);
    request.destination_list_size = 0;
    request.list = vec![counter(1)];
    request.action = DROP | COUNT;
    steering.set_entry(&budget(), &request).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [0; 0]);
    assert_eq!(tirs(&steering, [2; 6]), [0; 0], "no entry is for it");
    let one = QueryFlowCounter { flow_counter_id: 1, ..QueryFlowCounter::default() };
    let mut counted = vec![0; 8];
    counted.extend([2u64, 120].into_iter().flat_map(u64::to_be_bytes));
    assert_eq!(steering.counters.query(&one).unwrap(), counted);
    request.flow_counter_list_size = 17;
    assert_eq!(steering.set_entry(&budget(), &request), Err(Status::Limits));
}

#[test]
fn lists_that_are_cut_short_are_refused() {
    let mut steering = Steering::default();
    let place = by_destination(&mut steering);
    let whole = entry(place, 0, BROADCAST, (DESTINATION_TIR, 7));
    for request in [
        SetFlowTableEntry { match_value: None, ..whole.clone() },
        SetFlowTableEntry { destination_list_size: 2, ..whole.clone() },
        SetFlowTableEntry { flow_counter_list_size: 1, ..whole },
    ] {
        assert_eq!(steering.set_entry(&budget(), &request), Err(Status::BadInputLength));
    }
}

#[test]
fn tables_in_a_circle_end() {
    let mut steering = Steering::default();
    let place = by_destination(&mut steering);
    let mut request = entry(place, 0, BROADCAST, (DESTINATION_TABLE, place.0));
    request.destination_list_size = 2;
    request.list = vec![listed(DESTINATION_TABLE, place.0); 2];
    steering.set_entry(&budget(), &request).unwrap();
    steering.set_root(&root(place.0)).unwrap();
    assert_eq!(tirs(&steering, BROADCAST), [0; 0]);
}
