/**
 * Repeated diagnoses of a bundle. What one diagnosis finds may be a moment of normal work, such as
 * the second between the move of a channel and the switch of serving: a finding is shown when the
 * next diagnosis, soon after, has it too.
 */
import type { Finding } from '../../lib/core/findings.ts';
import type { Clock } from '../../lib/platform/clock.ts';

/** The pause between diagnoses. */
const PAUSE_MS = 15_000;
/** The pause before new findings are confirmed, longer than a switch takes. */
const CONFIRM_MS = 4_000;

export class Diagnoses {
  readonly #diagnose: () => Promise<readonly Finding[]>;
  readonly #clock: Clock;
  /** What the last diagnosis found. */
  #last: readonly Finding[] = [];
  #confirmed: readonly Finding[] = [];
  #nextMs = 0;

  constructor(diagnose: () => Promise<readonly Finding[]>, clock: Clock) {
    this.#diagnose = diagnose;
    this.#clock = clock;
  }

  /** The confirmed findings. Starts the next diagnosis when it is due. */
  list(): readonly Finding[] {
    if (this.#clock.nowMs() >= this.#nextMs) {
      this.#nextMs = Number.POSITIVE_INFINITY;
      // What cannot be read is reported with the state.
      this.#diagnose().then(
        (findings) => this.#finish(findings),
        () => this.#finish([]),
      );
    }
    return this.#confirmed;
  }

  #finish(findings: readonly Finding[]): void {
    const before = new Set(this.#last.map(getKey));
    this.#confirmed = findings.filter((finding) => before.has(getKey(finding)));
    this.#last = findings;
    const isNew = this.#confirmed.length < findings.length;
    this.#nextMs = this.#clock.nowMs() + (isNew ? CONFIRM_MS : PAUSE_MS);
  }
}

/** Texts may hold counts that change. */
function getKey({ check, where }: Finding): string {
  return `${check} ${where}`;
}
