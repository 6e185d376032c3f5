//! The BPF programs, packet by packet: tables of BPF_PROG_TEST_RUN cases that
//! compare verdict, whole output packet and counters. Dispatch cases run at tc
//! and at XDP alike. Root and Linux 6.9 are needed; without them all of this fails.
//!
//! | module | what it says of the programs |
//! | --- | --- |
//! | handshake | SYNs: which are answered, and with what |
//! | cookies | which cookies are believed |
//! | flows | packets of known flows: sent on, and how they age the record |
//! | changes | how the daemon changes records
//! | lengths | headers that lie, and what is none of ours |
//! | guard | what reaches the daemon, and what is for somebody else |
//! | icmp | errors about the backends' answers |
//! | answers | how a backend follows what its server answers
//! | agent | encapsulated packets at a backend |
//! | rebuild | and what they do with its sockets |
//! | handoff | how a backend gives a connection up
//! | closing | servers that close while they owe nothing
//! | halfpipe | several owners of one stream
//! | spray | packets for service addresses at a spray, and heartbeats |
//! | keeper | several dispatchers: what goes to the backend, and what to another of them |
//! | sprayed | what sprays send, at a dispatcher |
//! | seats | several connections of one flow on one backend
//! | splice | flows whose server has no agent, both ways |
//! | overheard | how a dispatcher follows what such a server answers, and when a flow may leave it
//! | split | the same, where an agent does the way back |
//! | tags | Rust and BPF agree on the keyed hash |
//! | noise | no bytes upset the programs; nothing unproved changes state |
//! | budget | what the verifier has to walk |

mod agent;
mod answers;
mod backend;
mod bench;
mod boundary;
mod budget;
mod changes;
mod closing;
mod cookie;
mod cookies;
mod finished;
mod flows;
mod guard;
mod halfpipe;
mod handoff;
mod handshake;
mod heir;
mod icmp;
mod keeper;
mod kernel;
mod lengths;
mod noise;
mod outcome;
mod overheard;
mod packet;
mod parked;
mod rebuild;
mod seats;
mod splice;
mod split;
mod spray;
mod sprayed;
mod standing;
mod tags;
