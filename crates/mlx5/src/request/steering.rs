//! Commands about flow tables, their groups and entries (`flow_table_context`, `fte_match_param`,
//! `flow_context`), and the counters of flows.

use super::part::{Whole, request};
use crate::layout::bits::Field;
use crate::layout::head::OP_MOD;

/// Bytes of the criteria over outer headers (`fte_match_set_lyr_2_4`).
pub(crate) const MATCH_LEN: usize = 64;

/// `flow_table_context` where a table is made or changed.
const fn table(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(0xc0)
}

/// `flow_context` where an entry is set.
const ENTRY_BIT: usize = 0x200;
const fn entry(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(ENTRY_BIT)
}

const FLOW_INDEX: Field = Field::new(0x100, 32);
const GROUP_CRITERIA: usize = 0x200 / 8;
const ENTRY_VALUE: usize = (ENTRY_BIT + 0x200) / 8;
const ENTRY_LIST: usize = (ENTRY_BIT + 0x1800) / 8;

request! {
    /// The table that a command is about; `destroy_flow_table_in` has nothing else.
    FlowTable {
        table_type: u8 = Field::new(0x80, 8),
        table_id: u32 = Field::new(0xa8, 24),
    }

    /// Where frames go on that no entry of a table is for.
    Miss {
        table_miss_action: u8 = table(0x4, 4),
        table_miss_id: u32 = table(0x28, 24),
    }

    CreateFlowTable {
        table: FlowTable = Whole,
        miss: Miss = Whole,
    }

    ModifyFlowTable {
        table: FlowTable = Whole,
        modify_field_select: u16 = Field::new(0x70, 16),
        miss: Miss = Whole,
    }

    SetFlowTableRoot {
        op_mod: u16 = OP_MOD,
        table: FlowTable = Whole,
    }

    CreateFlowGroup {
        table: FlowTable = Whole,
        start_flow_index: u32 = Field::new(0xe0, 32),
        end_flow_index: u32 = Field::new(0x120, 32),
        match_criteria_enable: u8 = Field::new(0x1f8, 8),
        match_criteria: Option<[u8; MATCH_LEN]> = GROUP_CRITERIA..,
    }

    DestroyFlowGroup {
        table: FlowTable = Whole,
        group_id: u32 = Field::new(0xc0, 32),
    }

    SetFlowTableEntry {
        op_mod: u16 = OP_MOD,
        table: FlowTable = Whole,
        modify_enable_mask: u8 = Field::new(0xd8, 8),
        flow_index: u32 = FLOW_INDEX,
        group_id: u32 = entry(0x20, 32),
        flow_tag: u32 = entry(0x48, 24),
        action: u16 = entry(0x70, 16),
        destination_list_size: u32 = entry(0x88, 24),
        flow_counter_list_size: u32 = entry(0xa8, 24),
        match_value: Option<[u8; MATCH_LEN]> = ENTRY_VALUE..,
        /// Destinations, and the flow counters behind them.
        list: Vec<[u8; 8]> = ENTRY_LIST..,
    }

    DeleteFlowTableEntry {
        table: FlowTable = Whole,
        flow_index: u32 = FLOW_INDEX,
    }

    AllocFlowCounter {
        /// A bit for each size of a row of counters; 0 for one counter.
        flow_counter_bulk: u16 = Field::new(0x73, 13),
    }

    DeallocFlowCounter {
        flow_counter_id: u32 = Field::new(0x40, 32),
    }

    QueryFlowCounter {
        clear: bool = Field::new(0xc0, 1),
        num_of_counters: u32 = Field::new(0xd0, 16),
        flow_counter_id: u32 = Field::new(0xe0, 32),
    }
}
