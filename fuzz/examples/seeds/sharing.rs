//! Hosts that share a unit: copies that are called back, locks that pass on, hosts that are silent, and orders of every
//! kind.

use fuzz::sharing_script::{Named, Step, What};
use scsi::sharing::{CallbackAnswer, Lock, Mode, Parameters, Resource};

use crate::write;

fn seed(name: &str, steps: &[(usize, What)]) {
    let mut bytes = Vec::new();
    steps.iter().for_each(|(host, what)| Step { host: *host, what: what.clone() }.emit(&mut bytes));
    write("sharing", name, &bytes);
}

fn order(parameters: &Parameters) -> What {
    What::Order { action: parameters.action(), named: Named::Host(0), list: parameters.emit() }
}

pub fn write_seeds() {
    use What::{Answer, Lose, Pass, Read, Register, Reset, Write};
    seed("callback", &[(0, Register), (0, Read(1)), (3, Write(1)), (0, Answer), (0, Read(1)), (3, Write(1))]);
    seed(
        "silent",
        &[(0, Register), (0, Read(1)), (3, Write(1)), (0, Read(1)), (0, Pass(39)), (0, Pass(2)), (0, Read(1))],
    );
    seed("lost", &[(0, Register), (0, Read(1)), (0, Lose), (3, Write(1)), (0, Register), (0, Answer), (0, Read(1))]);
    seed("reset", &[(0, Register), (1, Register), (0, Read(1)), (1, Write(1)), (3, Reset), (1, Write(1)), (0, Answer)]);
    let lock = |request, mode| {
        let lock = Lock { resource: Resource::Metadata(2), mode: Some(mode), grant: 0 };
        Parameters::Lock { request, transaction: 0, is_reclaim: false, locks: vec![lock] }
    };
    let mut locks = vec![(0, Register), (1, Register), (0, order(&lock(1, Mode::MetadataExclusive)))];
    let list = lock(1, Mode::MetadataShared).emit();
    locks.push((1, What::Order { action: 3, named: Named::Host(1), list }));
    locks.extend([(0, Pass(1)), (0, Answer), (1, Write(2)), (1, Answer)]);
    seed("locks", &locks);
    let all = [
        Parameters::Register { key: [9; 16], registers_reads: true, before: None },
        Parameters::Renew { taken: 1 },
        lock(2, Mode::MetadataShared),
        Parameters::Unlock { transaction: 0, locks: vec![Lock { resource: Resource::File(1), mode: None, grant: 1 }] },
        Parameters::Acknowledge { taken: 1, callback: 1, answer: CallbackAnswer::InUse },
        Parameters::Begin { transaction: 1, birth: 0 },
        Parameters::End { transaction: 1 },
        Parameters::Open { file: 1, is_write: true },
        Parameters::Close { file: 1, is_write: true },
        Parameters::Cancel { request: 2 },
        Parameters::Fence { client: 1 },
        Parameters::Leave,
    ];
    let orders: Vec<_> = all.iter().map(|parameters| (0, order(parameters))).collect();
    seed("orders", &[&[(0, Register)], &orders[..]].concat());
}
