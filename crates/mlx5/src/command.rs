//! Commands: what each does, by opcode. Those that are not built answer "bad operation", as firmware that does not know them.

use crate::bits::{Field, put};
use crate::budget::Budget;
use crate::caps::{Caps, LOG_MAX_PDS, LOG_MAX_XRCDS};
use crate::function::Shared;
use crate::ledger::Ledger;
use crate::mailbox::Command;
use crate::objects::Numbers;
use crate::opcode::{self, Answer, Status};
use crate::pages::Pages;
use crate::port;
use crate::report::Act;
use crate::uctx::Users;
use crate::{
    counter_set, create, eq, general_object, modify_cq, multicast, page_fault, psv, query, uar,
    user_memory, work_queue,
};
use hca::Device;
use std::sync::Arc;

const OPCODE: Field = Field::new(0x0, 16);
const OP_MOD: Field = Field::new(0x30, 16);
/// Number of the object that a command is about, in most of them.
pub(crate) const OBJECT: Field = Field::new(0x48, 24);
/// Bytes of status and syndrome before an answer, and least of an answer.
const HEAD_LEN: usize = 8;
const LEAST_LEN: usize = 16;

/// How far the driver has brought the function up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Disabled,
    Enabled,
    /// There are objects only now.
    Initialized,
}

impl Stage {
    /// From when on a command is executed (PRM "Initialization"): first a driver settles versions, pages and capabilities.
    fn first_of(opcode: u16) -> Stage {
        match opcode {
            opcode::ENABLE_HCA | opcode::QUERY_ISSI | opcode::NOP => Stage::Disabled,
            opcode::DISABLE_HCA
            | opcode::INIT_HCA
            | opcode::SET_ISSI
            | opcode::QUERY_PAGES
            | opcode::MANAGE_PAGES
            | opcode::QUERY_HCA_CAP
            | opcode::SET_HCA_CAP
            | opcode::QUERY_ADAPTER
            | opcode::SET_DRIVER_VERSION
            | opcode::ACCESS_REG => Stage::Enabled,
            _ => Stage::Initialized,
        }
    }
}

/// What commands change besides objects of the HCA.
pub(crate) struct Commands {
    stage: Stage,
    caps: Caps,
    ledger: Ledger,
    users: Users,
    pages: Pages,
    issi: u64,
    pub(crate) uars: Numbers,
    transport_domains: Numbers,
    pub(crate) pds: Numbers,
    pub(crate) xrcds: Numbers,
    pub(crate) cqs: Numbers,
    /// Of all kinds.
    pub(crate) srqs: Numbers,
    pub(crate) counter_sets: Numbers,
    pub(crate) psvs: Numbers,
    pub(crate) user_memories: Numbers,
}

/// An answer that says nothing but that the command is done.
pub(crate) fn done() -> Answer {
    Ok(vec![0; HEAD_LEN])
}

/// An answer with a number in its usual place.
pub(crate) fn number(number: u32) -> Answer {
    let mut answer = vec![0; HEAD_LEN];
    put(&mut answer, 0, &(number & 0xff_ffff).to_be_bytes());
    Ok(answer)
}

impl Commands {
    pub(crate) fn new(hca: &Device, budget: &Arc<Budget>) -> Commands {
        Commands {
            stage: Stage::Disabled,
            ledger: Ledger::new(budget.clone()),
            caps: Caps::new(hca.attr(), hca.mac().is_some()),
            users: Users::default(),
            pages: Pages::default(),
            issi: 0,
            uars: Numbers::within(uar::PAGES),
            transport_domains: Numbers::within(1..1 << 16),
            pds: Numbers::within(1..1 << LOG_MAX_PDS),
            xrcds: Numbers::within(1..1 << LOG_MAX_XRCDS),
            cqs: Numbers::within(1..hca.attr().max_cq),
            srqs: Numbers::within(1..1 << 24),
            counter_sets: Numbers::within(counter_set::ALL),
            psvs: Numbers::within(psv::ALL),
            user_memories: Numbers::within(1..1 << user_memory::LOG_MAX),
        }
    }

    /// Executes a command; gives its whole answer.
    pub(crate) fn run(&mut self, shared: &Arc<Shared>, command: &Command) -> Vec<u8> {
        let mut output = vec![0; HEAD_LEN];
        match self.execute(shared, &command.input) {
            Ok(answer) => output.extend(answer),
            Err(status) => {
                output[0] = status as u8;
                let act = Act::Command(OPCODE.get(&command.input) as u16, status);
                let (op_mod, object) = (OP_MOD.get(&command.input), OBJECT.get(&command.input));
                let place = format_args!("op_mod {op_mod:#x}, object {object:#x}");
                shared.reports.tell(act, place);
            }
        }
        let least = LEAST_LEN.max(output.len());
        output.resize(least, 0);
        output
    }

    fn execute(&mut self, shared: &Arc<Shared>, input: &[u8]) -> Answer {
        let opcode = OPCODE.get(input) as u16;
        if self.stage < Stage::first_of(opcode) {
            return Err(Status::BadSystemState);
        }
        self.users.check(opcode, input)?;
        let charge = self.ledger.before(opcode, input)?;
        let answer = self.execute_checked(opcode, shared, input)?;
        self.users.note(opcode, input, &answer);
        self.ledger.after(opcode, input, &answer, charge);
        Ok(answer)
    }

    fn execute_checked(&mut self, opcode: u16, shared: &Arc<Shared>, input: &[u8]) -> Answer {
        let op_mod = OP_MOD.get(input) as u16;
        match opcode {
            opcode::ENABLE_HCA => self.begin_anew(shared, Stage::Enabled),
            opcode::DISABLE_HCA => self.begin_anew(shared, Stage::Disabled),
            opcode::INIT_HCA => self.init(),
            opcode::TEARDOWN_HCA => self.tear_down(shared, input),
            opcode::SET_DRIVER_VERSION | opcode::NOP => done(),
            opcode::QUERY_ISSI => query::issi(self.issi),
            opcode::SET_ISSI => self.set_issi(input),
            // No page is wanted.
            opcode::QUERY_PAGES => done(),
            opcode::MANAGE_PAGES => self.pages.manage(op_mod, input),
            opcode::QUERY_HCA_CAP => {
                let mut answer = vec![0; HEAD_LEN];
                answer.extend(self.caps.query(op_mod)?);
                Ok(answer)
            }
            opcode::SET_HCA_CAP => {
                self.caps.set(op_mod, input.get(LEAST_LEN..).unwrap_or_default())?;
                shared.faults.set_by_memory(self.caps.faults_by_memory());
                done()
            }
            opcode::QUERY_VUID => query::vuid(&shared.hca, input),
            opcode::QUERY_ADAPTER => query::adapter(),
            opcode::QUERY_SPECIAL_CONTEXTS => query::special_contexts(),
            opcode::ACCESS_REG => port::access_register(shared, op_mod == 0, input),
            opcode::ALLOC_UAR => uar::alloc(self, shared),
            opcode::DEALLOC_UAR => uar::dealloc(self, shared, OBJECT.get32(input)),
            opcode::ALLOC_TRANSPORT_DOMAIN => number(self.transport_domains.take()?),
            opcode::DEALLOC_TRANSPORT_DOMAIN => {
                self.transport_domains.give_back(OBJECT.get32(input)).and_then(|()| done())
            }
            opcode::CREATE_UCTX => self.users.create(self.caps.of_users(), input),
            opcode::DESTROY_UCTX => self.users.destroy(input),
            opcode::CREATE_EQ => {
                let uar = uar::named(shared, input, eq::CONTEXT)?;
                number(shared.eqs.create(uar, &shared.budget, input)?.into())
            }
            opcode::DESTROY_EQ => {
                shared.eqs.destroy(eq::NUMBER.get(input) as u8)?;
                done()
            }
            opcode::QUERY_HCA_VPORT_CONTEXT => shared.port.context(),
            opcode::MODIFY_HCA_VPORT_CONTEXT => shared.port.modify(input),
            opcode::QUERY_HCA_VPORT_GID => shared.port.gids(input),
            opcode::QUERY_HCA_VPORT_PKEY => shared.port.pkeys(input),
            opcode::QUERY_VPORT_COUNTER => query::vport_counters(shared),
            opcode::MAD_IFC => shared.port.mad(input),
            other => self.execute_on_objects(other, shared, input),
        }
    }

    fn execute_on_objects(&mut self, opcode: u16, shared: &Arc<Shared>, input: &[u8]) -> Answer {
        let object = OBJECT.get32(input);
        match opcode {
            opcode::ALLOC_PD => create::pd(self, shared),
            opcode::DEALLOC_PD => create::dealloc_pd(self, shared, object),
            opcode::ALLOC_XRCD => create::xrcd(self, shared),
            opcode::DEALLOC_XRCD => create::dealloc_xrcd(self, shared, object),
            opcode::CREATE_MKEY => create::mkey(shared, input),
            opcode::QUERY_MKEY => query::mkey(shared, object),
            opcode::DESTROY_MKEY => create::destroy_mkey(shared, object),
            opcode::CREATE_PSV => psv::create(self, shared, input),
            opcode::DESTROY_PSV => psv::destroy(self, shared, object),
            opcode::CREATE_GENERAL_OBJECT => general_object::create(shared, input),
            opcode::DESTROY_GENERAL_OBJECT => general_object::destroy(shared, input),
            opcode::CREATE_UMEM => user_memory::create(self, shared, input),
            opcode::DESTROY_UMEM => user_memory::destroy(self, shared, object),
            opcode::PAGE_FAULT_RESUME => page_fault::resume(shared, input),
            opcode::ALLOC_MEMIC => shared.memic.alloc(input),
            opcode::DEALLOC_MEMIC => shared.memic.dealloc(input),
            opcode::MODIFY_MEMIC => shared.memic.modify(OP_MOD.get(input) as u16, input),
            opcode::CREATE_CQ => create::cq(self, shared, input),
            opcode::DESTROY_CQ => create::destroy_cq(self, shared, object),
            opcode::QUERY_CQ => query::cq(shared, object),
            opcode::MODIFY_CQ => modify_cq::modify(shared, object, input),
            opcode::ALLOC_Q_COUNTER => counter_set::alloc(self, shared),
            opcode::DEALLOC_Q_COUNTER => counter_set::dealloc(self, shared, input),
            opcode::QUERY_Q_COUNTER => counter_set::query(shared, input),
            opcode::ATTACH_TO_MCG => multicast::attach(shared, input),
            opcode::DETACH_FROM_MCG => multicast::detach(shared, input),
            opcode::CREATE_XRC_SRQ => create::xrc_srq(self, shared, input),
            opcode::CREATE_RMP => create::pool(self, shared, input),
            opcode::CREATE_XRQ => create::tags(self, shared, input),
            opcode::DESTROY_XRC_SRQ | opcode::DESTROY_RMP | opcode::DESTROY_XRQ => {
                create::destroy_srq(self, shared, object)
            }
            opcode::ARM_XRC_SRQ => work_queue::arm_xrc_srq(shared, object, input),
            opcode::ARM_RQ => work_queue::arm_tags(shared, OP_MOD.get(input), object, input),
            opcode::MODIFY_RMP => work_queue::modify_pool(shared, object, input),
            opcode::QUERY_XRC_SRQ => query::xrc_srq(shared, object),
            opcode::QUERY_RMP => query::pool(shared, object),
            opcode::QUERY_XRQ => query::tags(shared, object),
            opcode::CREATE_QP => create::qp(shared, input),
            opcode::DESTROY_QP => create::destroy_qp(shared, object),
            opcode::QUERY_QP => query::qp(shared, object),
            opcode::RST2INIT_QP
            | opcode::INIT2INIT_QP
            | opcode::INIT2RTR_QP
            | opcode::RTR2RTS_QP
            | opcode::RTS2RTS_QP
            | opcode::SQD_RTS_QP
            | opcode::QP_2ERR
            | opcode::QP_2RST => work_queue::modify_qp(opcode, shared, object, input),
            other if shared.hca.mac().is_some() => {
                shared.nic.execute(other, shared, OP_MOD.get(input) as u16, input)
            }
            _ => Err(Status::BadOperation),
        }
    }

    /// As after a reset, but for the command queue. A driver that takes over from one that left nothing in order begins so.
    fn begin_anew(&mut self, shared: &Shared, stage: Stage) -> Answer {
        shared.end_all();
        *self = Commands { stage, ..Commands::new(&shared.hca, &shared.budget) };
        done()
    }

    fn init(&mut self) -> Answer {
        if self.stage != Stage::Enabled {
            return Err(Status::BadSystemState);
        }
        self.stage = Stage::Initialized;
        done()
    }

    /// `TEARDOWN_HCA`: all objects end; what was settled before them stays.
    fn tear_down(&mut self, shared: &Shared, input: &[u8]) -> Answer {
        const PROFILE: Field = Field::new(0x50, 16);
        const GRACEFUL: u64 = 0;
        if PROFILE.get(input) != GRACEFUL {
            return Err(Status::BadParameter);
        }
        let pages = std::mem::take(&mut self.pages);
        let anew = Commands::new(&shared.hca, &shared.budget);
        let caps = std::mem::replace(&mut self.caps, anew.caps);
        let issi = self.issi;
        self.begin_anew(shared, Stage::Enabled)?;
        (self.caps, self.pages, self.issi) = (caps, pages, issi);
        shared.faults.set_by_memory(self.caps.faults_by_memory());
        done()
    }

    fn set_issi(&mut self, input: &[u8]) -> Answer {
        const WANTED: Field = Field::new(0x50, 16);
        let wanted = WANTED.get(input);
        if wanted > 1 {
            return Err(Status::BadParameter);
        }
        self.issi = wanted;
        done()
    }
}
