//! Bad input of every kind: verbs with wrong arguments, requests that must fail,
//! memory that goes away under traffic, hostile packets. The host program lives, the errors are the
//! specified ones, the counters tell.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use system::{
    FIRST_GPU, Namespace, Run, Running, User, c_program, is_root, listening, port, shared_dir, skip,
};

/// The program, or the end of the test as skipped.
macro_rules! compiled {
    ($name:literal) => {
        match c_program($name) {
            Ok(program) => program.display().to_string(),
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// Ends the test as skipped unless it can be run as somebody else.
macro_rules! need_root {
    () => {
        if !is_root() {
            skip!("already a plain user: the other tests show it");
        }
    };
}

/// Where a test runs, alone: a flood of packets, or another user on UDP port 4791, disturbs its
/// neighbours.
struct Host {
    user: User,
    namespace: Option<Namespace>,
    _turn: MutexGuard<'static, ()>,
}

impl Host {
    /// On this host.
    fn here() -> Host {
        Host::new(User::Same, false)
    }

    /// In a network of its own where that can be made: always for another user.
    fn apart(user: User) -> Host {
        Host::new(user, is_root())
    }

    fn new(user: User, apart: bool) -> Host {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = apart.then(|| Namespace::new("bad"));
        Host { user, namespace, _turn: turn }
    }

    fn run(&self, run: Run) -> Run {
        let run = run.user(self.user);
        match &self.namespace {
            Some(namespace) => run.within(namespace),
            None => run,
        }
    }
}

/// A program that judges itself, in its place.
#[track_caller]
fn judged(place: &Host, line: &str, least: u32) {
    system::judged(place.run(Run::hca(line)), least);
}

#[test]
fn wrong_arguments_get_the_specified_errno() {
    judged(&Host::here(), &compiled!("bad_verbs"), 135);
    judged(&Host::here(), &compiled!("bad_queue_pairs"), 66);
}

#[test]
fn only_legal_changes_of_qp_states_are_made() {
    judged(&Host::here(), &compiled!("bad_states"), 1700);
}

#[test]
fn failing_requests_get_the_specified_completion() {
    judged(&Host::here(), &compiled!("bad_completions"), 780);
    judged(&Host::here(), &compiled!("bad_unreliable"), 20);
}

#[test]
fn windows_give_only_what_was_bound() {
    judged(&Host::here(), &compiled!("bad_windows"), 73);
}

#[test]
fn the_halves_of_xrc_know_their_domain() {
    judged(&Host::here(), &compiled!("bad_xrc"), 63);
}

#[test]
fn tags_meet_their_buffers_and_nothing_else_does() {
    judged(&Host::here(), &compiled!("bad_tags"), 81);
}

#[test]
fn counters_count_what_they_were_told_to() {
    judged(&Host::here(), &compiled!("bad_counters"), 15);
}

#[test]
fn flow_rules_and_work_queues_are_what_they_can_be() {
    judged(&Host::apart(User::Same), &compiled!("bad_flows"), if is_root() { 99 } else { 41 });
}

#[test]
fn atomic_writes_and_flushes_need_their_rights() {
    judged(&Host::here(), &compiled!("bad_placement"), 35);
}

#[test]
fn nothing_uses_a_domain_once_nccls_network_is_closed() {
    judged(&Host::here(), &compiled!("nccl_net"), 130);
}

#[test]
fn block_signatures_are_made_checked_and_refused() {
    let program = compiled!("bad_signatures");
    let place = Host::here();
    let run = Run::hca(&program).option("--model").option("connectx");
    system::judged(place.run(run), 99);
    judged(&place, &format!("{program} plain"), 4);
}

#[test]
fn queues_live_in_the_memory_of_the_programs_allocator() {
    judged(&Host::here(), &compiled!("allocators"), 65);
}

#[test]
fn registrations_take_what_they_should() {
    registrations(&Host::here());
}

/// The one list of what registrations refuse. It needs a GPU's node: on a machine with GPUs of its
/// own the first beside them.
#[track_caller]
fn registrations(place: &Host) {
    let program = match c_program("bad_memory") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::hca("sh -c").arg(format!("exec $PROGRAM {FIRST_GPU}")).env("PROGRAM", program);
    system::judged(place.run(run), 407);
}

#[test]
fn on_demand_regions_change() {
    judged(&Host::here(), &compiled!("odp_regions"), 14);
}

#[test]
fn on_demand_pages_come_and_go() {
    judged(&Host::here(), &compiled!("on_demand"), 1018);
}

#[test]
fn memory_may_go_away_under_traffic() {
    judged(&Host::here(), &format!("{} 4", compiled!("gone_memory")), 1000);
}

#[test]
fn all_of_it_as_a_plain_user() {
    need_root!();
    let place = Host::apart(User::Nobody);
    judged(&place, &compiled!("bad_verbs"), 135);
    judged(&place, &compiled!("bad_queue_pairs"), 66);
    judged(&place, &compiled!("bad_states"), 1700);
    judged(&place, &compiled!("bad_completions"), 780);
    judged(&place, &compiled!("bad_unreliable"), 20);
    judged(&place, &compiled!("bad_flows"), 41);
    judged(&place, &compiled!("gone_memory"), 260);
    registrations(&place);
    judged(&place, &format!("{} 1", compiled!("on_demand")), 400);
}

/// The seed of whatever is random here; `HOSTILE_SEED` tries another one.
fn seed() -> String {
    std::env::var("HOSTILE_SEED").unwrap_or_else(|_| "4791".to_owned())
}

#[test]
fn wild_commands_to_the_connection_manager_harm_nobody() {
    let program = compiled!("wild_cm");
    judged(&Host::apart(User::Same), &format!("{program} 100000 {}", seed()), 9);
}

/// The sender of hostile packets, where every user can read it.
fn hostile(place: &Host, count: u32) -> Run {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/hostile.py");
    let tool = shared_dir().join(format!("hostile-{}.py", std::process::id()));
    std::fs::copy(source, &tool).expect("a copy of the sender");
    let seed = seed();
    // The first python3 on root's path may lie where nobody else can go.
    let python = Some("/usr/bin/python3").filter(|p| Path::new(p).is_file()).unwrap_or("python3");
    let line = format!("{python} {} --count {count} --seed {seed}", tool.display());
    place.run(Run::plain(&line)).limit(Duration::from_secs(300))
}

/// A fresh folder where every user may write.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir_in(shared_dir()).expect("a temporary folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    folder
}

/// Waits until a program says that it is ready.
#[track_caller]
fn until_ready(program: &mut Running) {
    program.until("not ready", |program| program.stdout().lines().any(|line| line == "ready"));
}

fn counter(file: &Path, name: &str) -> u64 {
    let counters = std::fs::read_to_string(file).expect("the counters of the victim");
    counters
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no counter {name}: {counters}"))
}

/// An IPv6 address beside `::1`, in a namespace of a test.
const LONE_IP6: &str = "fd09::9";

/// Hostile packets of all families against a program that checks itself.
fn against_victim(place: &Host, victim: &str, count: u32, switches: &[&str]) {
    let folder = open_folder();
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let mut victim = Run::hca(victim).arg(file("stop")).env("PEERDMA_COUNTERS", file("counters"));
    for switch in switches {
        victim = victim.arg(switch);
    }
    let mut victim = place.run(victim).limit(Duration::from_secs(360)).start();
    until_ready(&mut victim);
    std::fs::write(file("targets"), victim.stdout()).expect("a file");
    let mut sender = hostile(place, count).arg("--targets").arg(file("targets"));
    if victim.stdout().contains(&format!("address {LONE_IP6}")) {
        sender = sender.arg("--stranger").arg("::1");
    }
    let sent = sender.finish().ok();
    std::fs::write(file("stop"), "").expect("a file");
    let victim = victim.finish();
    assert!(victim.succeeded(), "{victim}\n{sent}");
    assert!(system::rows(&victim) >= 60, "{victim}");
    // Many are lost in a flood; every kind must have come through.
    let least = u64::from(count) / 20;
    for (name, least) in [
        ("rx_icrc_encapsulated", least),
        ("rx_malformed", least),
        ("rx_dropped", least),
        ("out_of_sequence", least),
        ("duplicate_request", least),
        ("resp_remote_access_errors", 1),
        ("req_cqe_error", 1),
    ] {
        let counted = counter(&file("counters"), name);
        assert!(counted >= least, "{name} is {counted}, not {least}: {sent}");
    }
}

#[test]
fn hostile_packets_do_no_harm() {
    if !system::has("python3") {
        skip!("python3 is not installed");
    }
    let victim = compiled!("victim");
    against_victim(&Host::apart(User::Same), &victim, 20_000, &[]);
}

#[test]
fn hostile_packets_do_no_harm_to_a_plain_user() {
    if !system::has("python3") {
        skip!("python3 is not installed");
    }
    need_root!();
    let victim = compiled!("victim");
    against_victim(&Host::apart(User::Nobody), &victim, 4_000, &[]);
}

#[test]
fn hostile_packets_over_ipv6_do_no_harm() {
    if !system::has("python3") {
        skip!("python3 is not installed");
    }
    if !is_root() {
        skip!("an address of one's own needs root");
    }
    let victim = compiled!("victim");
    let place = Host::apart(User::Same);
    let namespace = place.namespace.as_ref().expect("root has one");
    namespace.output(&format!("ip -6 addr add {LONE_IP6}/128 dev lo nodad"));
    against_victim(&place, &victim, 4_000, &["6"]);
}

/// A server and its client in the middle of hostile packets, both unmodified programs.
fn under_fire(place: &Host, line: &str, count: u32) {
    let port = port();
    let line = format!("{line} -p {port}");
    let mut server = place.run(Run::hca(&line)).start();
    listening(port, place.namespace.as_ref(), &mut server);
    let mut fire = hostile(place, count).start();
    let client = place.run(Run::hca(&line)).arg("127.0.0.1").finish();
    assert!(client.succeeded(), "{client}\n{}", fire.stdout());
    server.finish().ok();
    // It may be over already, or have some left to send to nobody.
    let over = !fire.alive();
    let fire = fire.finish().ok();
    eprintln!("{line}: {} the fire ended; {}", if over { "after" } else { "before" }, fire.stdout);
}

#[test]
fn programs_go_on_among_hostile_packets() {
    if !system::has("python3") {
        skip!("python3 is not installed");
    }
    if !system::has("ib_write_bw") || !system::has("ibv_rc_pingpong") {
        skip!("perftest or ibverbs-utils is not installed");
    }
    let place = Host::apart(User::Same);
    under_fire(&place, "ib_write_bw -d peerdma0 -x 0 -F -D 3 -s 65536", 40_000);
    under_fire(&place, "ib_send_bw -d peerdma0 -x 0 -F -D 3 -s 4096", 40_000);
    under_fire(&place, "ibv_rc_pingpong -g 0 -c -n 20000", 40_000);
}
