//! Owned child processes: the one place where ether starts a program, and the one place with `unsafe`.
//!
//! # What is promised
//!
//! * **A child is owned until it is proved gone.** [`Child::retired`] answers with [`ExitEvidence`], which
//!   nothing else can make. It exists once the leader was reaped, its whole process group answers `ESRCH`,
//!   its error output is at end of file, the lock that it inherited (if any) is free, and every
//!   [`OutputPipe`] is at end of file or dropped (D4 i). The exit status plays no part in it.
//! * **Dropping loses nothing.** A [`Child`] that is dropped has its group killed; an owned thread, the
//!   child's *keeper*, brings the rest to its end, and [`Processes::shutdown`] joins every keeper.
//! * **Nothing outlives this process**, however it dies (E1). See below.
//! * **Bounded.** The number of children, the lines and bytes kept of each one's error output, and what
//!   [`Spawner::run_bounded`] collects all have limits.
//! * **Clean.** A child gets the environment it was given and nothing else, no open file that was not meant
//!   for it, no core dumps, no way to new privileges, and `/dev/null` for input.
//!
//! # How nothing outlives us
//!
//! Two belts, each of which works without the other:
//!
//! 1. *The guardian*: a second process of the same executable ([`guardian_main`]), in a session of its own,
//!    holding one end of a socket whose other end only this process has. A child sends itself, as a pidfd,
//!    over that socket after `fork` and waits for the answer before `exec`, so no program ever runs
//!    unregistered. At end of file, which `kill -9` causes as surely as an orderly exit, the guardian kills
//!    every registered group. If the guardian dies, the spawning thread starts another and registers
//!    everything that lives anew; while there is none, nothing is spawned.
//! 2. *The parent-death signal*: the kernel kills a child when the thread that made it ends. That signal
//!    follows the thread and not the process, so one thread, which lives as long as [`Processes`], makes all.
//!
//! Covered: the child, and whatever it starts that stays in its process group, when this process exits,
//! crashes, or is killed, and when the guardian is killed before, after, or by the same hand for children
//! without children of their own. Not covered: a descendant that leaves the group (`setsid`, `setpgid`),
//! and grandchildren when guardian and server are killed at the same instant. FFmpeg does neither of these;
//! while this process lives such a stray that holds a pipe or the lock also withholds the evidence, so it is
//! never mistaken for gone. A cgroup that is killed as a whole (systemd, containers) is the complete answer
//! and needs nothing from here.
//!
//! # Why identifiers cannot be mistaken
//!
//! A leader that exited stays a zombie, which pins its process and group number, until its keeper has sent
//! the group its last `SIGKILL` and the guardian has forgotten it. Only then is it reaped; so no signal of
//! ours can reach a process that was given the number later.

mod activity;
mod bounded;
mod child;
mod error;
mod guardian;
mod keeper;
mod launch;
mod lines;
mod lock;
mod output;
mod processes;
mod spawner;
mod spec;
mod sys;
#[cfg(test)]
mod tests;

pub use activity::Activity;
pub use bounded::{Bounds, Output, RunError};
pub use child::{Child, ExitEvidence};
pub use error::{SpawnError, StartError};
pub use guardian::{GUARDIAN_ARG, guardian_main};
pub use lock::{LockError, LockFile, LockState, ReleaseProof, lock_state};
pub use output::OutputPipe;
pub use processes::{AllGone, Config, Guard, Processes};
pub use spawner::Spawner;
pub use spec::{PipeId, Spec, find_program, find_runnable};
