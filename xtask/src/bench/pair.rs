//! Programs that are measured in pairs, a server and its client: perftest's, UCX's, libfabric's
//! and iperf3's.

use super::program::LIMIT;
use anyhow::{Context, Result, bail, ensure};
use system::Run;

/// Runs a server and, once it listens, its client; gives what the client said. Neither outlives
/// this.
fn pair(server: Run, client: Run, port: u16) -> Result<String> {
    let mut server = server.limit(LIMIT).start();
    system::listening(port, None, &mut server);
    let client = client.limit(LIMIT).finish();
    if !client.succeeded() {
        bail!("{client}\nits server said:\n{}", server.said());
    }
    let server = server.finish();
    if !server.succeeded() {
        bail!("{server}\nits client said:\n{}", client.stdout);
    }
    Ok(client.stdout)
}

/// Figures of a program of perftest's on the HCA, whose both ends run as `adjust` has them: those
/// of [`perftest_figures`].
pub fn perftest(line: &str, adjust: impl Fn(Run) -> Run) -> Result<Vec<f64>> {
    perftest_apart(line, |run, _| adjust(run))
}

/// The same where the ends differ, which `adjust` is told by their numbers: the server is 0.
pub fn perftest_apart(line: &str, adjust: impl Fn(Run, usize) -> Run) -> Result<Vec<f64>> {
    let port = system::port();
    let run = Run::hca(&format!("{line} -d peerdma0 -x 0 -F -p {port}"));
    let client = adjust(run.clone(), 1).arg("127.0.0.1");
    perftest_figures(&pair(adjust(run, 0), client, port)?)
}

/// The figures that a client of perftest's has printed. Columns for bandwidth: bytes, iterations,
/// peak and average (in Gb/s with `--report_gbits`), millions of messages a second; for latency, in
/// microseconds: bytes, iterations, least, greatest, typical.
pub fn perftest_figures(text: &str) -> Result<Vec<f64>> {
    let line = text.lines().skip_while(|line| !line.contains("#bytes")).nth(1);
    Ok(numbers(line.with_context(|| format!("no figures in {text}"))?))
}

/// Figures of ucx_perftest, over what `transports` names for `UCX_TLS`. Columns: iterations,
/// latency in microseconds (typical, average, overall), bandwidth in MiB/s (average, overall),
/// messages a second (average, overall).
pub fn ucx(transports: &str, test: &str) -> Result<Vec<f64>> {
    ucx_perftest(test, |run| run.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "lo"))
}

/// The same by CMA alone: UCX's own choice never puts or gets by it, so the transport is asked. Its
/// memory is of ordinary pages, as perftest's is; with huge ones it would be up to thrice as fast
/// where that does not fit into the caches.
pub fn ucx_by_cma(test: &str) -> Result<Vec<f64>> {
    let test = format!("{test} -d memory -x cma -D zcopy");
    ucx_perftest(&test, |run| run.env("UCX_CMA_ALLOC", "mmap,heap"))
}

fn ucx_perftest(test: &str, adjust: impl Fn(Run) -> Run) -> Result<Vec<f64>> {
    ensure!(system::has("ucx_perftest"), "ucx_perftest is not installed (package ucx-utils)");
    let port = system::port();
    let call = adjust(Run::plain(system::ucx_perftest()))
        .env(system::UCX_PERFTEST_ENV.0, system::UCX_PERFTEST_ENV.1);
    let options = format!("-t {test} -p {port}");
    let options: Vec<&str> = options.split_whitespace().collect();
    let text = pair(call.clone().args(&options), call.arg("127.0.0.1").args(&options), port)?;
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Final:"));
    Ok(numbers(line.with_context(|| format!("no final line in {text}"))?))
}

/// GB/s of one TCP stream by iperf3.
pub fn iperf_gb_per_second(seconds: u32) -> Result<f64> {
    ensure!(system::has("iperf3"), "iperf3 is not installed (package iperf3)");
    let port = system::port();
    let server = Run::plain(&format!("iperf3 --server --one-off --port {port}"));
    let client = Run::plain(&format!("iperf3 --client 127.0.0.1 --port {port} --json"));
    let text = pair(server, client.args(&["--time", &seconds.to_string()]), port)?;
    let said: serde_json::Value = serde_json::from_str(&text)?;
    let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.with_context(|| format!("no rate in {text}"))? / 8e9)
}

/// Microseconds that a message takes by libfabric's fi_pingpong over TCP.
pub fn libfabric_us(bytes: u64, count: u64) -> Result<f64> {
    let port = system::port();
    let call = Run::plain(&format!("fi_pingpong -p tcp -e msg -I {count} -S {bytes}"));
    let (from, to) = (port.to_string(), port.to_string());
    let server = call.clone().args(&["-B", &from]);
    let text = pair(server, call.args(&["-P", &to, "127.0.0.1"]), port)?;
    // Columns: bytes, sent, acknowledged, total, time, MB/s, microseconds, millions a second.
    let line = text.lines().skip_while(|line| !line.starts_with("bytes")).nth(1);
    let word = line.and_then(|line| line.split_whitespace().nth(6));
    let word = word.with_context(|| format!("no figures in {text}"))?;
    word.parse().with_context(|| word.to_owned())
}

/// The words of a line that are numbers.
pub fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// GB/s of perftest's average, in Gb/s.
pub fn from_gbit(figures: &[f64]) -> Result<f64> {
    Ok(column(figures, 3)? / 8.0)
}

/// GB/s of UCX's overall bandwidth.
pub fn from_mib(figures: &[f64]) -> Result<f64> {
    Ok(column(figures, 5)? / 1e3 * 1.048_576)
}

/// One of the figures.
pub fn column(figures: &[f64], column: usize) -> Result<f64> {
    figures.get(column).copied().with_context(|| format!("only {figures:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_below_their_heading() {
        let text = " local address: LID 0000 QPN 0x0011\n\
                    #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n\
                    Conflicting CPU frequency values\n";
        assert!(perftest_figures(text).unwrap().is_empty());
        let text =
            " 1 2 3\n #bytes     #iterations    t_min[usec]\n 8       500          23.97\n---\n";
        assert_eq!(perftest_figures(text).unwrap(), [8.0, 500.0, 23.97]);
        assert!(perftest_figures("Failed to modify QP").is_err());
    }
}
