/** Counts the requests that use a version, so that it stops after the last of them. */
export class VersionUsers {
  #count = 0;
  #onDrained: (() => void) | undefined;

  acquire(): void {
    this.#count++;
  }

  release(): void {
    this.#count--;
    if (this.#count === 0) this.#onDrained?.();
  }

  /** Resolves when no request uses the version. `acquire` must not be called any more. */
  async drain(): Promise<void> {
    if (this.#count === 0) return;
    await new Promise<void>((resolve) => {
      this.#onDrained = resolve;
    });
  }
}
