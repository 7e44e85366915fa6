//! What kind of bridge a bridge is, where its capability was not read: told from its place in the
//! tree.

use pcie::{Address, Below, Function, Kind};
use std::collections::HashMap;

/// Gives bridges of unknown kind (`Kind::Bridge` in `guess`) the kind that their place allows: root
/// ports on root buses, below those upstream ports, below those downstream ports, and so on.
pub(crate) fn infer(functions: &mut [Function], guess: &[Address]) {
    let index: HashMap<Address, usize> =
        functions.iter().enumerate().map(|(i, f)| (f.address, i)).collect();
    for &address in guess {
        settle(functions, &index, guess, address, 0);
    }
}

fn settle(
    functions: &mut [Function],
    index: &HashMap<Address, usize>,
    guess: &[Address],
    address: Address,
    depth: usize,
) -> Option<Kind> {
    let at = *index.get(&address)?;
    // deeper than PCI has buses: a circle, which the machine will refuse
    if functions[at].kind != Kind::Bridge || !guess.contains(&address) || depth > 256 {
        return Some(functions[at].kind);
    }
    let kind = match functions[at].below {
        Below::Host(_) => Kind::RootPort,
        Below::Port(port) => match settle(functions, index, guess, port, depth + 1) {
            Some(Kind::SwitchUpstream) => Kind::SwitchDownstream,
            Some(Kind::RootPort | Kind::SwitchDownstream) => Kind::SwitchUpstream,
            _ => Kind::Bridge,
        },
    };
    functions[at].kind = kind;
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_alternate_below_a_root_port() {
        let address = |bus: u8| format!("{bus:02x}:00.0").parse::<Address>().unwrap();
        let below = |bus: u8| Below::Port(address(bus));
        let mut functions = vec![
            Function::new(address(4), Kind::Endpoint, below(3)),
            Function::new(address(3), Kind::Bridge, below(2)),
            Function::new(address(2), Kind::Bridge, below(1)),
            Function::new(address(1), Kind::Bridge, below(0)),
            Function::new(address(0), Kind::Bridge, Below::Host(0)),
        ];
        let guess: Vec<Address> = functions[1..].iter().map(|f| f.address).collect();
        infer(&mut functions, &guess);
        let kinds: Vec<Kind> = functions.iter().map(|f| f.kind).collect();
        use Kind::*;
        assert_eq!(kinds, [Endpoint, SwitchUpstream, SwitchDownstream, SwitchUpstream, RootPort]);
    }
}
