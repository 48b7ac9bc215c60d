//! What may be written about an ending (P26), as far as the ledger can tell.

use crate::decide::{Decision, Defect, answer, held};
use crate::evidence::{Author, EvidenceKind, PIECES, PIECES_OF_NODE, StoredEvidence};
use crate::outcome::{Outcome, Recorded};
use crate::state::{Change, NotLoaded, State};

pub(super) fn record_evidence(state: &State, evidence: StoredEvidence) -> Result<Decision, Defect> {
    let fence = &evidence.fence;
    let refused = |recorded| Ok(answer(Outcome::Record(recorded)));
    match held(state, fence)? {
        Err(mismatch) => return refused(Recorded::Fenced(mismatch)),
        Ok(row) if row.retired => return refused(Recorded::Retired),
        Ok(_) => {}
    }
    if let Some(unfit) = unfit(state, &evidence)? {
        return refused(unfit);
    }
    let kept = state.evidence.get(&fence.session)?.map_or(&[][..], Vec::as_slice);
    if let Some(current) = kept.iter().find(|piece| piece.author == evidence.author) {
        let same = current.kind == evidence.kind && current.body == evidence.body;
        return refused(match same {
            true => Recorded::Already,
            false => Recorded::Conflict {
                current: Box::new(current.clone()),
            },
        });
    }
    let author = |piece: &StoredEvidence| {
        let node = piece.author.node(&fence.target).to_owned();
        (piece.author.part(), node)
    };
    let own = author(&evidence);
    let of_node = kept.iter().filter(|piece| author(piece) == own).count();
    // Anybody may write as a source, so that sources leave free what the target's own boots may need.
    let source = |piece: &StoredEvidence| matches!(piece.author, Author::Source { .. });
    let sources = kept.iter().filter(|piece| source(piece)).count();
    let crowded = source(&evidence) && sources >= PIECES - PIECES_OF_NODE;
    if of_node >= PIECES_OF_NODE || crowded {
        return refused(Recorded::Full { kept: kept.len() });
    }
    Ok(Decision {
        outcome: Outcome::Record(Recorded::Recorded),
        changes: vec![Change::Evidence(Box::new(evidence))],
    })
}

/// Why this author may not write this, as far as the ledger can tell. Who owns a source, the grant says: whether
/// a source's piece counts is for the verifier to judge.
fn unfit(state: &State, evidence: &StoredEvidence) -> Result<Option<Recorded>, NotLoaded> {
    let not_theirs = Some(Recorded::NotTheirs { kind: evidence.kind });
    if evidence.kind == EvidenceKind::Attested {
        return Ok(not_theirs);
    }
    let Author::Target { boot } = &evidence.author else {
        return Ok(None);
    };
    if *boot == evidence.fence.target_boot {
        return Ok(not_theirs.filter(|_| evidence.kind == EvidenceKind::Succeeded));
    }
    let target = state.targets.get(&evidence.fence.target)?;
    let succeeds = target.is_some_and(|target| target.boot == *boot);
    Ok((!succeeds).then_some(Recorded::NotAuthor))
}
