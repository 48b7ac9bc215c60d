//! How fast an execution makes media and how fast it is fetched, over the last seconds.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::{ByteStream, Pieces, Served, ServedMedia};
use ether_media::Ticks;
use ether_types::Monotonic;

/// How far back rates look.
const WINDOW: Duration = Duration::from_secs(10);
/// The least time that a rate is stated over.
const LEAST: Duration = Duration::from_secs(1);
/// Most notes that are kept, and the least time between two.
const MOST: usize = 64;
const APART: Duration = Duration::from_millis(200);

/// What was made and fetched at some moments.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    notes: VecDeque<Note>,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    at: Monotonic,
    /// The run that was there, and the media time that it had made.
    run: Option<(u64, Ticks)>,
    fetched: u64,
}

/// Rates over the last seconds, where enough was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Media seconds made in a second.
    pub(crate) speed: Option<f64>,
    /// Bits fetched in a second.
    pub(crate) goodput_bits_per_second: Option<u64>,
}

impl Meter {
    /// Notes how much the newest run has made and how many bytes were fetched by now.
    pub(crate) fn note(&mut self, now: Monotonic, run: Option<(u64, Ticks)>, fetched: u64) {
        while let Some(second) = self.notes.get(1)
            && now.saturating_since(second.at) > WINDOW
        {
            self.notes.pop_front();
        }
        let note = Note {
            at: now,
            run,
            fetched,
        };
        // The newest note always stands; those that crowd it go.
        let crowded = |n: usize, notes: &VecDeque<Note>| {
            let (before, last) = (notes.get(n.wrapping_sub(1)), notes.get(n));
            before
                .zip(last)
                .is_some_and(|(a, b)| b.at.saturating_since(a.at) < APART)
        };
        if self.notes.len() >= MOST || crowded(self.notes.len().wrapping_sub(1), &self.notes) {
            self.notes.pop_back();
        }
        self.notes.push_back(note);
    }

    /// The rates at `now`.
    pub(crate) fn rates(&self, now: Monotonic) -> Rates {
        let recent = |note: &&Note| now.saturating_since(note.at) <= WINDOW;
        let Some(last) = self.notes.back() else {
            return Rates::default();
        };
        let over = |first: &Note| {
            let time = last.at.saturating_since(first.at);
            (time >= LEAST).then_some(time.as_secs_f64())
        };
        let first = self.notes.iter().find(recent);
        let goodput_bits_per_second = first.and_then(|first| {
            let bytes = last.fetched.saturating_sub(first.fetched);
            Some((bytes as f64 * 8.0 / over(first)?) as u64)
        });
        let speed = last.run.and_then(|(run, made)| {
            let same = |note: &&Note| note.run.is_some_and(|(other, _)| other == run);
            let first = self.notes.iter().filter(recent).find(same)?;
            let more = made - first.run?.1;
            Some(more.0 as f64 / Ticks::HZ as f64 / over(first)?)
        });
        Rates {
            speed,
            goodput_bits_per_second,
        }
    }
}

/// Counts the bytes that leave an execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetched(Arc<AtomicU64>);

impl Fetched {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// `served`, whose bytes are counted as they are taken.
    pub(crate) fn counted(&self, served: Served) -> Served {
        let media = Counted {
            media: served.media,
            count: self.clone(),
        };
        Served {
            media: Box::new(media),
            ..served
        }
    }
}

struct Counted {
    media: Box<dyn ServedMedia>,
    count: Fetched,
}

impl ServedMedia for Counted {
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream {
        ByteStream::new(CountedPieces {
            stream: self.media.stream(range),
            count: self.count,
        })
    }
}

struct CountedPieces {
    stream: ByteStream,
    count: Fetched,
}

impl Pieces for CountedPieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        let polled = self.stream.poll_next(cx);
        if let Poll::Ready(Some(Ok(piece))) = &polled {
            self.count.0.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_millis(millis))
    }

    fn made(run: u64, seconds: i64) -> Option<(u64, Ticks)> {
        Some((run, Ticks(seconds * Ticks::HZ)))
    }

    #[test]
    fn rates_are_those_of_the_last_seconds_and_of_the_newest_run() {
        let mut meter = Meter::default();
        assert_eq!(meter.rates(at(0)), Rates::default());
        for second in 0..=20 {
            meter.note(at(second * 1_000), made(1, 3 * second as i64), second * 500);
        }
        let rates = meter.rates(at(20_000));
        assert_eq!(
            (rates.speed, rates.goodput_bits_per_second),
            (Some(3.0), Some(4_000))
        );
        // A seek: the next run's speed is its own.
        meter.note(at(21_000), made(2, 0), 10_500);
        assert_eq!(meter.rates(at(21_000)).speed, None);
        meter.note(at(23_000), made(2, 10), 10_500);
        assert_eq!(meter.rates(at(23_000)).speed, Some(5.0));
        // Nothing runs: there is no speed, and what was fetched goes out of sight.
        meter.note(at(40_000), None, 10_500);
        let rates = meter.rates(at(40_000));
        assert_eq!((rates.speed, rates.goodput_bits_per_second), (None, None));
    }

    #[test]
    fn notes_are_bounded_however_often_it_is_asked() {
        let mut meter = Meter::default();
        for milli in 0..100_000 {
            meter.note(at(milli), made(1, milli as i64), milli);
        }
        assert!(meter.notes.len() <= MOST);
        assert_eq!(meter.rates(at(100_000)).goodput_bits_per_second, Some(8_000));
    }
}
