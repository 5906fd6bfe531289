/** A sum whose terms weigh less the older they are. Pure: times are passed in. */
export class FadingSum {
  readonly #fadeMs: number;
  #sum = 0;
  #updatedMs = 0;

  /** @param fadeMs the time after which a term weighs 1/e */
  constructor(fadeMs: number) {
    this.#fadeMs = fadeMs;
  }

  get(nowMs: number): number {
    return this.#sum * Math.exp(-Math.max(0, nowMs - this.#updatedMs) / this.#fadeMs);
  }

  set(value: number, nowMs: number): void {
    this.#sum = value;
    this.#updatedMs = nowMs;
  }

  add(value: number, nowMs: number): void {
    this.set(this.get(nowMs) + value, nowMs);
  }
}
