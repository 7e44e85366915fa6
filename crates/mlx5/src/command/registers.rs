//! Registers (`ACCESS_REG`): those of an InfiniBand port (`ptys_reg`, `pmtu_reg`, `pvlc_reg`), and
//! those that tell of the device. An Ethernet port has its own (`nic/registers.rs`).

use crate::command::{dump, firmware};
use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status};
use crate::nic::{self, Nic};
use crate::object::shared::{Shared, is_on_ethernet};
use crate::request::function::AccessReg;
use subnet::smp;

/// Registers of `ACCESS_REG`.
mod register {
    pub(super) const PMTU: u16 = 0x5003;
    pub(super) const PTYS: u16 = 0x5004;
    pub(super) const PPCNT: u16 = 0x5008;
    pub(super) const PVLC: u16 = 0x500f;
    pub(super) const NODE_DESCRIPTION: u16 = 0x6001;
    pub(super) const HOST_ENDIANNESS: u16 = 0x7004;
}

/// The `op_mod` that writes a register.
const WRITE: u16 = 0;
const MAX_MTU: Field = Field::new(0x20, 16);
const ADMIN_MTU: Field = Field::new(0x40, 16);
const OPER_MTU: Field = Field::new(0x60, 16);
const MTU_BYTES: u64 = 4096;
const IB_WIDTH_CAPABILITY: Field = Field::new(0x80, 16);
const IB_PROTOCOL_CAPABILITY: Field = Field::new(0x90, 16);
const IB_WIDTH_OPER: Field = Field::new(0x140, 16);
const IB_PROTOCOL_OPER: Field = Field::new(0x150, 16);
/// 4 lanes, as the register says it.
const WIDTH_4X: u64 = 1 << 2;
/// NDR. A ConnectX-8 also does XDR (bit 8), which older kernels do not know and the management of
/// subnets says in a table of its own (LinkSpeedExt2); the port says in each place what every
/// driver and manager of a guest can read.
const SPEED: u64 = 1 << 7;
const VL_HARDWARE: Field = Field::new(0x3c, 4);
const VL_OPERATIONAL: Field = Field::new(0x7c, 4);
/// VL0 alone.
const ONE_LANE: u64 = 1;

/// `ACCESS_REG`: what is read, or written and read back.
pub(crate) fn access(nic: &Nic, shared: &Shared, request: &AccessReg) -> Answer {
    let mut data = request.register_data.clone();
    let (number, write) = (request.register_id, request.op_mod == WRITE);
    if is_on_ethernet(&shared.hca) && nic::register(&nic.vport, shared, number, write, &mut data)? {
        let mut answer = vec![0; 8];
        answer.extend(data);
        return Ok(answer);
    }
    let fields: &[(Field, u64)] = match number {
        register::HOST_ENDIANNESS | register::NODE_DESCRIPTION => &[],
        register::PPCNT => {
            nic::counters::infiniband(shared, &mut data);
            &[]
        }
        register::PMTU => &[(MAX_MTU, MTU_BYTES), (ADMIN_MTU, MTU_BYTES), (OPER_MTU, MTU_BYTES)],
        register::PTYS => &[
            (IB_WIDTH_CAPABILITY, WIDTH_4X),
            (IB_PROTOCOL_CAPABILITY, SPEED),
            (IB_WIDTH_OPER, WIDTH_4X),
            (IB_PROTOCOL_OPER, SPEED),
        ],
        register::PVLC => &[(VL_HARDWARE, ONE_LANE), (VL_OPERATIONAL, ONE_LANE)],
        dump::REGISTER => {
            dump::read(shared, &mut data)?;
            &[]
        }
        register if firmware::knows(register) => {
            firmware::read(register, &mut data)?;
            &[]
        }
        _ => return Err(Status::BadParameter),
    };
    fields.iter().for_each(|(field, value)| field.set(&mut data, *value));
    if number == register::NODE_DESCRIPTION {
        put(&mut data, 0, smp::ADAPTER_DESCRIPTION);
    }
    let mut answer = vec![0; 8];
    answer.extend(data);
    Ok(answer)
}
