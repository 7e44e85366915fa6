//! Commands, by what they are about, and what carries each out. Those that are not built answer
//! "bad operation", as firmware that does not know them.

use crate::command::caps::Caps;
use crate::command::ledger::Ledger;
use crate::command::pages::Pages;
use crate::command::registers;
use crate::command::uctx::Users;
use crate::handlers::{
    counter_set, create, general_object, modify_cq, multicast, page_fault, psv, query, uar,
    user_memory, work_queue,
};
use crate::layout::head::{Answer, HEAD_LEN, LEAST_LEN, Status, done, number};
use crate::machine::budget::Budget;
use crate::machine::report::Act;
use crate::nic::Nic;
use crate::object::pools::Pools;
use crate::object::shared::{Shared, is_on_ethernet};
use crate::request::command::{Command, Function, Head, Port, Queue, QueuePair, Request, Resource};
use crate::request::function::{QueryHcaCap, SetIssi, TeardownHca};
use crate::request::qp::Transition;
use hca::Device;
use std::sync::Arc;

/// How far the driver has brought the function up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Disabled,
    Enabled,
    /// There are objects only now.
    Initialized,
}

impl Stage {
    /// From when on a command is executed (PRM "Initialization"): first a driver settles versions,
    /// pages and capabilities.
    fn first_of(command: &Command) -> Stage {
        let Command::Function(command) = command else { return Stage::Initialized };
        match command {
            Function::EnableHca | Function::QueryIssi | Function::Nop => Stage::Disabled,
            Function::DisableHca
            | Function::InitHca
            | Function::SetIssi(_)
            | Function::QueryPages
            | Function::ManagePages(_)
            | Function::QueryHcaCap(_)
            | Function::SetHcaCap(_)
            | Function::QueryAdapter
            | Function::SetDriverVersion
            | Function::AccessReg(_) => Stage::Enabled,
            Function::TeardownHca(_)
            | Function::QuerySpecialContexts
            | Function::QueryVuid(_)
            | Function::CreateUctx(_)
            | Function::DestroyUctx(_) => Stage::Initialized,
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
    issi: u16,
    pools: Pools,
    nic: Arc<Nic>,
}

impl Commands {
    pub(crate) fn new(hca: &Device, budget: &Arc<Budget>, nic: Arc<Nic>) -> Commands {
        Commands {
            stage: Stage::Disabled,
            ledger: Ledger::new(budget.clone()),
            caps: Caps::new(hca.attr(), is_on_ethernet(hca)),
            users: Users::default(),
            pages: Pages::default(),
            issi: 0,
            pools: Pools::new(hca.attr()),
            nic,
        }
    }

    /// Executes a command; gives its whole answer.
    pub(crate) fn run(&mut self, shared: &Arc<Shared>, input: &[u8]) -> Vec<u8> {
        let request = Request::parse(input);
        let mut output = vec![0; HEAD_LEN];
        match self.execute(shared, &request) {
            Ok(answer) => output.extend(answer),
            Err(status) => {
                output[0] = status as u8;
                let Head { opcode, op_mod, object, .. } = request.head;
                let place = format_args!("op_mod {op_mod:#x}, object {object:#x}");
                shared.reports.tell(Act::Command(opcode, status), place);
            }
        }
        let least = LEAST_LEN.max(output.len());
        output.resize(least, 0);
        output
    }

    fn execute(&mut self, shared: &Arc<Shared>, request: &Request) -> Answer {
        let Request { head, command, .. } = request;
        if self.stage < Stage::first_of(command) {
            return Err(Status::BadSystemState);
        }
        self.users.check(head.uid, command)?;
        let charge = self.ledger.before(request)?;
        let answer = self.execute_checked(shared, command)?;
        self.users.note(head.uid, command, &answer);
        self.ledger.after(command, &answer, charge);
        Ok(answer)
    }

    fn execute_checked(&mut self, shared: &Arc<Shared>, command: &Command) -> Answer {
        match command {
            Command::Function(command) => self.on_function(shared, command),
            Command::Port(command) => self.on_port(shared, command),
            Command::Resource(command) => self.on_resource(shared, command),
            Command::Queue(command) => self.on_queue(shared, command),
            Command::QueuePair(command) => on_pair(shared, command),
            _ if !is_on_ethernet(&shared.hca) => Err(Status::BadOperation),
            Command::Vport(command) => self.nic.on_port(shared, command),
            Command::Ring(command) => self.nic.on_ring(shared, command),
            Command::Interface(command) => self.nic.on_interface(command),
            Command::Flow(command) => self.nic.on_flow(shared, command),
            Command::Unknown => Err(Status::BadOperation),
        }
    }

    fn on_function(&mut self, shared: &Shared, command: &Function) -> Answer {
        match command {
            Function::EnableHca => self.begin_anew(shared, Stage::Enabled),
            Function::DisableHca => self.begin_anew(shared, Stage::Disabled),
            Function::InitHca => self.init(),
            Function::TeardownHca(request) => self.tear_down(shared, request),
            Function::SetDriverVersion | Function::Nop => done(),
            Function::QueryIssi => query::issi(self.issi),
            Function::SetIssi(request) => self.set_issi(request),
            // No page is wanted.
            Function::QueryPages => done(),
            Function::ManagePages(request) => self.pages.manage(request),
            Function::QueryHcaCap(QueryHcaCap { op_mod }) => {
                let mut answer = vec![0; HEAD_LEN];
                answer.extend(self.caps.query(*op_mod)?);
                Ok(answer)
            }
            Function::SetHcaCap(request) => {
                self.caps.set(request)?;
                shared.faults.set_by_memory(self.caps.faults_by_memory());
                done()
            }
            Function::QueryVuid(request) => query::vuid(&shared.hca, request),
            Function::QueryAdapter => query::adapter(),
            Function::QuerySpecialContexts => query::special_contexts(),
            Function::AccessReg(request) => registers::access(&self.nic, shared, request),
            Function::CreateUctx(request) => self.users.create(self.caps.of_users(), request),
            Function::DestroyUctx(request) => self.users.destroy(request),
        }
    }

    fn on_port(&self, shared: &Shared, command: &Port) -> Answer {
        match command {
            Port::QueryHcaVportContext => shared.port.context(),
            Port::ModifyHcaVportContext(request) => shared.port.modify(request),
            Port::QueryHcaVportGid(request) => shared.port.gids(request),
            Port::QueryHcaVportPkey(request) => shared.port.pkeys(request),
            Port::QueryVportCounter => query::vport_counters(&self.nic, shared),
            Port::MadIfc(request) => shared.port.mad(request),
        }
    }

    fn on_resource(&mut self, shared: &Shared, command: &Resource) -> Answer {
        let pools = &mut self.pools;
        match command {
            Resource::AllocUar => uar::alloc(pools, shared),
            Resource::DeallocUar(about) => uar::dealloc(pools, shared, about.number),
            Resource::AllocTransportDomain => number(pools.transport_domains.take()?),
            Resource::DeallocTransportDomain(about) => {
                pools.transport_domains.give_back(about.number).and_then(|()| done())
            }
            Resource::AllocPd => create::pd(pools, shared),
            Resource::DeallocPd(about) => create::dealloc_pd(pools, shared, about.number),
            Resource::AllocXrcd => create::xrcd(pools, shared),
            Resource::DeallocXrcd(about) => create::dealloc_xrcd(pools, shared, about.number),
            Resource::CreateMkey(request) => create::mkey(shared, request),
            Resource::QueryMkey(about) => query::mkey(shared, about.number),
            Resource::DestroyMkey(about) => create::destroy_mkey(shared, about.number),
            Resource::CreatePsv(request) => psv::create(pools, shared, request),
            Resource::DestroyPsv(about) => psv::destroy(pools, shared, about.number),
            Resource::CreateGeneralObject(request) => general_object::create(shared, request),
            Resource::DestroyGeneralObject(request) => general_object::destroy(shared, request),
            Resource::CreateUmem(request) => user_memory::create(pools, shared, request),
            Resource::DestroyUmem(about) => user_memory::destroy(pools, shared, about.number),
            Resource::PageFaultResume(request) => page_fault::resume(shared, request),
            Resource::AllocMemic(request) => shared.memic.alloc(request),
            Resource::DeallocMemic(request) => shared.memic.dealloc(request),
            Resource::ModifyMemic(request) => shared.memic.modify(request),
            Resource::AllocQCounter => counter_set::alloc(pools, shared),
            Resource::DeallocQCounter(set) => {
                counter_set::dealloc(pools, shared, set.counter_set_id)
            }
            Resource::QueryQCounter(request) => counter_set::query(shared, request),
        }
    }

    fn on_queue(&mut self, shared: &Shared, command: &Queue) -> Answer {
        let pools = &mut self.pools;
        match command {
            Queue::CreateEq(request) => {
                let uar = shared.objects.uars.get(request.uar_page)?;
                number(shared.eqs.create(uar, &shared.budget, request)?.into())
            }
            Queue::DestroyEq(queue) => {
                shared.eqs.destroy(queue.eq_number)?;
                done()
            }
            Queue::CreateCq(request) => create::cq(pools, shared, request),
            Queue::DestroyCq(about) => create::destroy_cq(pools, shared, about.number),
            Queue::QueryCq(about) => query::cq(shared, about.number),
            Queue::ModifyCq(request) => modify_cq::modify(shared, request),
            Queue::CreateXrcSrq(request) => create::xrc_srq(pools, shared, request),
            Queue::CreateRmp(request) => create::pool(pools, shared, request),
            Queue::CreateXrq(request) => create::tags(pools, shared, request),
            Queue::DestroyXrcSrq(about) | Queue::DestroyRmp(about) | Queue::DestroyXrq(about) => {
                create::destroy_srq(pools, shared, about.number)
            }
            Queue::ArmXrcSrq(request) => work_queue::arm_xrc_srq(shared, request),
            Queue::ArmRq(request) => work_queue::arm_tags(shared, request),
            Queue::ModifyRmp(request) => work_queue::modify_pool(shared, request),
            Queue::QueryXrcSrq(about) => query::xrc_srq(shared, about.number),
            Queue::QueryRmp(about) => query::pool(shared, about.number),
            Queue::QueryXrq(about) => query::tags(shared, about.number),
        }
    }

    /// As after a reset, but for the command queue. A driver that takes over from one that left
    /// nothing in order begins so.
    fn begin_anew(&mut self, shared: &Shared, stage: Stage) -> Answer {
        self.end_all(shared);
        *self = Commands { stage, ..Commands::new(&shared.hca, &shared.budget, self.nic.clone()) };
        done()
    }

    /// Ends everything that commands made. When it returns nothing of that reaches the machine's
    /// memory any more.
    pub(crate) fn end_all(&self, shared: &Shared) {
        // Queues that have an appointment would flush themselves when it comes.
        shared.eqs.clear();
        self.nic.reset(&shared.hca);
        shared.end_all();
    }

    fn init(&mut self) -> Answer {
        if self.stage != Stage::Enabled {
            return Err(Status::BadSystemState);
        }
        self.stage = Stage::Initialized;
        done()
    }

    /// `TEARDOWN_HCA`: all objects end; what was settled before them stays.
    fn tear_down(&mut self, shared: &Shared, request: &TeardownHca) -> Answer {
        const GRACEFUL: u16 = 0;
        if request.profile != GRACEFUL {
            return Err(Status::BadParameter);
        }
        let pages = std::mem::take(&mut self.pages);
        let anew = Commands::new(&shared.hca, &shared.budget, self.nic.clone());
        let caps = std::mem::replace(&mut self.caps, anew.caps);
        let issi = self.issi;
        self.begin_anew(shared, Stage::Enabled)?;
        (self.caps, self.pages, self.issi) = (caps, pages, issi);
        shared.faults.set_by_memory(self.caps.faults_by_memory());
        done()
    }

    fn set_issi(&mut self, request: &SetIssi) -> Answer {
        if request.current_issi > 1 {
            return Err(Status::BadParameter);
        }
        self.issi = request.current_issi;
        done()
    }
}

fn on_pair(shared: &Arc<Shared>, command: &QueuePair) -> Answer {
    let modify = |transition, request| work_queue::modify_qp(shared, transition, request);
    match command {
        QueuePair::CreateQp(request) => create::qp(shared, request),
        QueuePair::DestroyQp(about) => create::destroy_qp(shared, about.number),
        QueuePair::QueryQp(about) => query::qp(shared, about.number),
        QueuePair::Rst2InitQp(request) => modify(Transition::RstToInit, request),
        QueuePair::Init2InitQp(request) => modify(Transition::InitToInit, request),
        QueuePair::Init2RtrQp(request) => modify(Transition::InitToRtr, request),
        QueuePair::Rtr2RtsQp(request) => modify(Transition::RtrToRts, request),
        QueuePair::Rts2RtsQp(request) => modify(Transition::RtsToRts, request),
        QueuePair::SqdRtsQp(request) => modify(Transition::SqdToRts, request),
        QueuePair::Qp2Err(request) => modify(Transition::ToErr, request),
        QueuePair::Qp2Rst(request) => modify(Transition::ToRst, request),
        QueuePair::AttachToMcg(request) => multicast::attach(shared, request),
        QueuePair::DetachFromMcg(request) => multicast::detach(shared, request),
    }
}
