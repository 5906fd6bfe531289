/** Writes the options of a command as the arguments of its command line. */

/** A list repeats its flag; `true` is a flag without a value; false and undefined leave it out. */
type OptionValue = string | number | boolean | undefined | readonly (string | number)[];

/** @example toArguments({ pollMs: 200, json: true }) is ['--poll-ms', '200', '--json'] */
export function toArguments(options: Readonly<Record<string, OptionValue>>): string[] {
  return Object.entries(options).flatMap(([name, value]) => {
    const flag = toFlag(name);
    if (typeof value === 'boolean') return value ? [flag] : [];
    return [value ?? []].flat().flatMap((one) => [flag, String(one)]);
  });
}

/** The flag of an option: `pollMs` is `--poll-ms`. */
export function toFlag(name: string): string {
  return `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}
