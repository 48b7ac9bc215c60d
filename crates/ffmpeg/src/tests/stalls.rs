//! FFmpeg that lives and makes nothing: real processes, stopped as hanging ones would be, under a clock that the
//! test moves. Nothing here waits for half a minute.

use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{EncoderState, Ended, Execution, MOST_RUNGS, ServeError};
use ether_types::{ManualClock, Timestamp};
use rustix::process::{Signal, kill_process};

use crate::scratch::{Blob, CHUNK, Scratch};
use crate::store::{RunView, Segment, Store};
use crate::strand::{RungSet, Strand};

use super::film::{COPY, ENCODE, Film, INIT, Make, Studio, fetch, ffmpegs_reading, script, segment};

const ROOMY: u64 = 512 << 20;
/// Longer than an execution waits for the rest of a burst of requests, and nothing beside its patience.
const MOMENT: Duration = Duration::from_millis(10);
/// An encoder that makes nothing is not given up before.
const PATIENCE: u32 = 30;
/// By then it is, however the looks at what it makes fall.
const GIVEN_UP: u32 = 45;

/// A film that is played under a clock of its own.
struct Hall {
    film: Film,
    studio: Studio,
    clock: ManualClock,
    execution: Arc<dyn Execution>,
}

impl Hall {
    async fn open(clip: &str, make: Make) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(0));
        let studio = Studio::timed("ffmpeg".as_ref(), Arc::new(clock.clone())).await;
        let film = Film::clip(clip).known_in(studio.dir());
        let execution = studio.start(&film, make, ROOMY).await;
        Self {
            film,
            studio,
            clock,
            execution,
        }
    }

    /// Carries out `asking`; time goes by in moments as long as that is what an encoder waits for to start.
    async fn attend<T>(&self, asking: impl Future<Output = T>) -> T {
        let mut asking = std::pin::pin!(asking);
        loop {
            tokio::select! {
                answer = &mut asking => return answer,
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
            if self.execution.observe().state == EncoderState::Idle {
                self.clock.advance(MOMENT);
            }
        }
    }

    /// Lets seconds go by, in each of which another viewer asks for `number` and goes away again.
    async fn seconds(&self, count: u32, number: u32) {
        for _ in 0..count {
            self.clock.advance(Duration::from_secs(1));
            tokio::select! {
                biased;
                _ = self.execution.serve(segment(number)) => {}
                () = std::future::ready(()) => {}
            }
            // The supervisor shares this thread: it has seen both by the time that this goes on.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            // The thread that reads the pipe does not: it needs a moment now and then that is real.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn held_back(&self) {
        while self.execution.observe().state != EncoderState::HeldBack {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the encoder where it stands, as one stands that waits for a dead disk.
    async fn hang(&self) -> Hung {
        let pids = ffmpegs_reading(&self.film.path);
        assert_eq!(pids.len(), 1, "there is one encoder to hang");
        let hung = Hung(pids[0]);
        kill_process(hung.0, Signal::STOP).unwrap();
        while !hung.stands() {
            tokio::task::yield_now().await;
        }
        hung
    }

    /// A segment that the encoder is near to, and does not have in its pipe.
    fn soon(&self) -> u32 {
        let missing = (0..).find(|n| self.execution.finished(segment(*n)).is_none());
        missing.unwrap() + 2
    }

    /// Someone waits for `number` all the time until the encoder is given up, neither too early nor too late.
    async fn given_up(&self, hung: &Hung, number: u32) {
        let waiting = tokio::spawn({
            let execution = self.execution.clone();
            async move { fetch(&*execution, segment(number)).await }
        });
        // It is its turn, and whatever it made before is taken in: from here on nothing comes.
        while self.execution.observe().state != EncoderState::Running || !hung.is_drained() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.seconds(PATIENCE - 1, number).await;
        assert!(hung.stands(), "given up before its time");
        self.seconds(GIVEN_UP - PATIENCE + 1, number).await;
        let stalled = ServeError::Ended {
            ended: Ended::Stalled,
        };
        assert_eq!(waiting.await.unwrap(), Err(stalled));
        assert_eq!(self.execution.observe().ended, Some(Ended::Stalled));
        assert!(
            ffmpegs_reading(&self.film.path).is_empty(),
            "and it is still there"
        );
    }

    /// Someone asks for `number`, so that it is the encoder's turn, and goes away; nobody waits when it is given up.
    async fn given_up_alone(&self, hung: &Hung, number: u32) {
        self.seconds(1, number).await;
        while self.execution.observe().state != EncoderState::Running || !hung.is_drained() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while self.execution.observe().ended != Some(Ended::Stalled) {
            self.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn close(self) {
        self.studio.close(self.execution).await;
        assert!(ffmpegs_reading(&self.film.path).is_empty());
    }
}

/// An encoder that was stopped.
struct Hung(rustix::process::Pid);

impl Hung {
    /// Whether its output was read to the last byte.
    fn is_drained(&self) -> bool {
        // Opened for reading, the pipe's name gives another reading end of the same pipe.
        let output = format!("/proc/{}/fd/1", self.0.as_raw_nonzero());
        let output = std::fs::File::open(output).unwrap();
        rustix::io::ioctl_fionread(output).unwrap() == 0
    }

    fn stands(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero()));
        stat.is_ok_and(|line| line.contains(") T "))
    }
}

#[tokio::test]
async fn an_encoder_that_hangs_is_given_up_however_often_viewers_ask_and_the_next_one_serves() {
    let hall = Hall::open("ntsc.mkv", ENCODE).await;
    hall.attend(fetch(&*hall.execution, INIT)).await.unwrap();
    let hung = hall.hang().await;
    let number = hall.soon();
    hall.given_up(&hung, number).await;
    assert_eq!(hall.execution.observe().runs, 1);
    // The next who asks gets it from another encoder.
    let again = hall.attend(fetch(&*hall.execution, segment(number))).await;
    assert!(again.is_ok(), "{again:?}");
    assert_eq!(hall.execution.observe().runs, 2);
    hall.close().await;
}

/// Players are told "not yet" after some seconds and ask again: one that nobody waits for when it is given up is told
/// to whoever asks next, and not waited for as long once more. That is news once, and for a while.
#[tokio::test]
async fn an_encoder_that_hung_while_nobody_waited_is_told_to_who_asks_next_and_to_nobody_else() {
    let hall = Hall::open("ntsc.mkv", ENCODE).await;
    hall.attend(fetch(&*hall.execution, INIT)).await.unwrap();
    let hung = hall.hang().await;
    let number = hall.soon();
    hall.given_up_alone(&hung, number).await;
    let stalled = ServeError::Ended {
        ended: Ended::Stalled,
    };
    let told = hall.attend(fetch(&*hall.execution, segment(number))).await;
    assert_eq!(told, Err(stalled));
    assert_eq!(
        hall.execution.observe().runs,
        1,
        "no other was started in silence"
    );
    let again = hall.attend(fetch(&*hall.execution, segment(number))).await;
    assert!(again.is_ok(), "{again:?}");
    // Whoever comes back after a long time gets a new one at once.
    let hung = hall.hang().await;
    let number = hall.soon();
    hall.given_up_alone(&hung, number).await;
    hall.clock.advance(Duration::from_secs(31));
    let later = hall.attend(fetch(&*hall.execution, segment(number))).await;
    assert!(later.is_ok(), "{later:?}");
    hall.close().await;
}

#[tokio::test]
async fn an_encoder_that_waits_for_a_paused_viewer_is_not_given_up() {
    let hall = Hall::open("ntsc.mkv", COPY).await;
    hall.attend(fetch(&*hall.execution, segment(0))).await.unwrap();
    hall.held_back().await;
    // Ten minutes, in which the page asks once more for what it has.
    hall.seconds(600, 0).await;
    let seen = hall.execution.observe();
    assert_eq!(
        (seen.state, seen.ended, seen.runs),
        (EncoderState::HeldBack, None, 1)
    );
    // The viewer goes on, and the same encoder with them.
    let last = hall.soon();
    for number in 1..=last {
        fetch(&*hall.execution, segment(number)).await.unwrap();
    }
    assert_eq!(hall.execution.observe().runs, 1);
    hall.held_back().await;
    // One that hangs after a pause is given up like any other.
    let hung = hall.hang().await;
    hall.seconds(120, last).await;
    assert!(hung.stands(), "given up while it was not its turn");
    let number = hall.soon();
    hall.given_up(&hung, number).await;
    hall.close().await;
}

/// A run that got its room counts as one that may work: what hangs then has stalled.
#[test]
fn waiting_for_scratch_is_being_held_back_and_only_while_it_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::create(dir.path(), &[CHUNK]).unwrap().remove(0);
    let strand = Strand::all(&Film::clip("ntsc.mkv").request(COPY)).remove(0);
    let store = Arc::new(Store::new(
        strand,
        scratch,
        (Arc::default(), Vec::new()),
        "tag".to_owned(),
        0,
    ));
    let run = RunView {
        id: 1,
        start: 0,
        rungs: RungSet::one(0),
        next: [1; MOST_RUNGS],
        position: 1,
        held: false,
        produced: None,
    };
    store.update(|state| state.run = Some(run));
    // All the space there is belongs to a segment that a viewer is being sent.
    let mut blob = Blob::new(store.scratch.clone());
    store.append(1, &mut blob, b"complete").unwrap();
    blob.settle();
    let segment = Arc::new(Segment {
        blob,
        head: 0,
        etag: String::new(),
        content_type: "video/mp4",
    });
    store.update(|state| state.segments.insert((0, 0), segment.clone()));
    let writer = std::thread::spawn({
        let store = store.clone();
        move || store.append(1, &mut Blob::new(store.scratch.clone()), b"the next")
    });
    let held = || store.lock().run.unwrap().held;
    while !held() {
        std::thread::yield_now();
    }
    // The viewer asks for the next, so nobody keeps the first but the connection that it is sent on.
    store.update(|state| state.cursor = 1);
    while !store.lock().segments.is_empty() || !held() {
        std::thread::yield_now();
    }
    drop(segment);
    writer.join().unwrap().unwrap();
    assert!(!held());
}

/// A seek in a film without an index reads all that lies before, and makes nothing meanwhile: it is let go on as long
/// as it reads, and given up once it does not.
#[tokio::test]
async fn an_encoder_that_reads_is_not_given_up_although_it_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let number = dir.path().join("number");
    let text = format!(
        "case \" $* \" in *\" pipe:1 \"*) echo $$ > {0}.part; mv {0}.part {0}\n\
         while read -r line; do sleep 0.001; done < /dev/urandom ;;\nesac\nexec ffmpeg \"$@\"",
        number.display()
    );
    let program = script(dir.path(), "ffmpeg", &text);
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let studio = Studio::timed(&program, Arc::new(clock.clone())).await;
    let film = Film::clip("ntsc.mkv");
    let execution = studio.start(&film, ENCODE, ROOMY).await;
    let waiting = tokio::spawn({
        let execution = execution.clone();
        async move { fetch(&*execution, segment(3)).await.map(|_| ()) }
    });
    let pause = || tokio::time::sleep(Duration::from_millis(1));
    let pid = loop {
        clock.advance(Duration::from_millis(10));
        if let Ok(text) = std::fs::read_to_string(&number) {
            break text.trim().parse::<i32>().unwrap();
        }
        pause().await;
    };
    let read = || {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let count = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        count.unwrap().parse::<u64>().unwrap()
    };
    // Nine minutes, in each five seconds of which it has read something.
    for _ in 0..108 {
        let before = read();
        while read() == before {
            pause().await;
        }
        clock.advance(Duration::from_secs(5));
        pause().await;
        assert!(!waiting.is_finished(), "given up while it reads");
    }
    kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    for _ in 0..GIVEN_UP {
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
    let stalled = ServeError::Ended {
        ended: Ended::Stalled,
    };
    assert_eq!(waiting.await.unwrap(), Err(stalled));
    studio.close_under(&clock, execution).await;
}
