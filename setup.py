"Build b2t_kit: its metadata lives in settings.ini, which nbdev 2 reads too."
import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
STATUS = {"3": "3 - Alpha", "4": "4 - Beta", "5": "5 - Production/Stable"}
PYTHONS = ("3.11", "3.12", "3.13")

parser = ConfigParser(delimiters=["="])
parser.read(HERE / "settings.ini", encoding="utf-8")
settings = parser["DEFAULT"]
extras = {
    key.removesuffix("_requirements"): value.split()
    for key, value in settings.items()
    if key.endswith("_requirements")
}


class BuildWithKernels(build_py):
    "Put the kernels into the package, where `b2t kernel build` finds them without a checkout."

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / settings["lib_path"] / "kernels"
            ignore = shutil.ignore_patterns(".*")
            shutil.copytree(HERE / "kaggle", target, ignore=ignore, dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildWithKernels},
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=settings["author"],
    author_email=settings["author_email"],
    url=settings["git_url"],
    license=settings["license"],
    keywords=settings["keywords"].split(),
    classifiers=[
        f"Development Status :: {STATUS[settings['status']]}",
        f"Intended Audience :: {settings['audience']}",
        f"Natural Language :: {settings['language']}",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        *(f"Programming Language :: Python :: {python}" for python in PYTHONS),
        "Typing :: Typed",
    ],
    packages=find_packages(include=[settings["lib_path"], f"{settings['lib_path']}.*"]),
    include_package_data=True,
    python_requires=f">={settings['min_python']}",
    install_requires=settings["requirements"].split(),
    extras_require=extras,
    entry_points={
        "console_scripts": settings["console_scripts"].split(),
        "nbdev": [f"{settings['lib_name']}={settings['lib_path']}._modidx:d"],
    },
)
