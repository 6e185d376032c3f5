//! What the verifier has to walk to prove each program, which grows without
//! notice until a kernel refuses: at most a million instructions (Linux 5.2).

use crate::backend::Agent;
use crate::bench::{Bench, Hook};
use crate::kernel::verified_instructions;
use crate::spray::Spray;

#[test]
fn the_verifier_has_head_room() {
    let agent = Agent::new();
    let table = [
        ("dispatch at tc", Bench::new(Hook::Tc).program, 250_000),
        ("dispatch at XDP", Bench::new(Hook::Xdp).program, 250_000),
        ("spray at tc", Spray::new(Hook::Tc).program, 20_000),
        ("spray at XDP", Spray::new(Hook::Xdp).program, 20_000),
        ("agent at ingress", agent.ingress, 200_000),
        ("agent at egress", agent.egress, 100_000),
    ];
    for (what, program, budget) in table {
        let walked = verified_instructions(&program);
        assert!(walked > 0, "{what}: the kernel counts");
        assert!(
            walked <= budget,
            "{what}: {walked} instructions, the budget is {budget}"
        );
        println!("{what}: {walked}");
    }
}
