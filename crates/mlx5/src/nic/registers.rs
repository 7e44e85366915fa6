//! Port registers of an Ethernet (`ACCESS_REG`: `ptys_reg`, `pmtu_reg`, `paos_reg`, `ppcnt_reg` and
//! their neighbours).

use super::counters;
use super::vport::{MAX_MTU, Vport};
use crate::layout::bits::Field;
use crate::layout::head::Status;
use crate::object::shared::Shared;

const PMTU: u16 = 0x5003;
const PTYS: u16 = 0x5004;
const PAOS: u16 = 0x5006;
const PFCC: u16 = 0x5007;
const PPCNT: u16 = 0x5008;

const MAX: Field = Field::new(0x20, 16);
const ADMIN: Field = Field::new(0x40, 16);
const OPER: Field = Field::new(0x60, 16);
const PROTOCOLS: [Field; 3] = [Field::new(0x60, 32), Field::new(0xc0, 32), Field::new(0x120, 32)];
const PROTOCOL_MASK: Field = Field::new(0x1d, 3);
const ETHERNET: u64 = 1 << 2;
/// 100GBASE-CR4, the fastest that these fields can name. A ConnectX-8 does 800GBASE-CR4 as well,
/// but by the register's extended fields, which drivers read where the register of port
/// capabilities (`pcam_reg`) says so; older kernels do not know it.
const SPEED: u64 = 1 << 20;
const ADMIN_STATUS: Field = Field::new(0x14, 4);
const OPER_STATUS: Field = Field::new(0x1c, 4);
const UP: u64 = 1;
const DOWN: u64 = 2;

/// Reads or writes a register of an Ethernet port in place; false for one that is no such.
pub(crate) fn register(
    vport: &Vport,
    shared: &Shared,
    number: u16,
    write: bool,
    data: &mut [u8],
) -> Result<bool, Status> {
    match number {
        PMTU => {
            if write {
                vport.set_admin_mtu(ADMIN.get(data) as u16);
            }
            MAX.set(data, MAX_MTU.into());
            ADMIN.set(data, vport.admin_mtu().into());
            OPER.set(data, vport.admin_mtu().into());
        }
        PTYS => {
            if PROTOCOL_MASK.get(data) & ETHERNET == 0 {
                return Err(Status::BadParameter);
            }
            PROTOCOLS.iter().for_each(|field| field.set(data, SPEED));
        }
        PAOS => {
            if write {
                vport.set_up(shared, ADMIN_STATUS.get(data) == UP);
            }
            let status = if vport.is_up() { UP } else { DOWN };
            ADMIN_STATUS.set(data, status);
            OPER_STATUS.set(data, status);
        }
        PPCNT => counters::ethernet(vport, shared, data),
        // Nobody pauses, but what a driver settles it finds again.
        PFCC => {
            let register = data.first_chunk_mut().ok_or(Status::BadInputLength)?;
            if write {
                vport.set_pauses(*register);
            } else {
                let port = register[1];
                *register = vport.pauses();
                register[1] = port;
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}
