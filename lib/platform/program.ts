/**
 * Runs the main function of a program. Programs have no top-level `await`, because they are bundled
 * as CommonJS.
 */

/** Sets the exit code when it has ended. An error that it throws ends the process with a trace. */
export function runProgram(main: () => Promise<number>): void {
  void main().then((exitCode) => {
    process.exitCode = exitCode;
  });
}
