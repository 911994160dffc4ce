/** The device library that tests run on, built if its sources changed. */
import { buildDeviceLibrary } from "../../src/native/build.ts";

export const library: string = await buildDeviceLibrary();

/** The fixtures of the repository. */
export const FIXTURES = `${import.meta.dir}/../fixtures/golden`;

/** The trained demo checkpoint. */
export const DEMO = `${import.meta.dir}/../../models/demo`;
